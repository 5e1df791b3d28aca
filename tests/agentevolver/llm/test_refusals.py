"""What servers' refusals say: over-long prompts with the limit they name, and which failures a retry may mend."""

from __future__ import annotations

import httpx
import openai
import pytest

from agentevolver.llm import responses
from agentevolver.llm.endpoint import served_model
from agentevolver.llm.errors import LLMRefused
from agentevolver.llm.settings import EndpointSettings, Role

OVERFLOWS = {
    "vllm": (
        "This model's maximum context length is 2048 tokens. However, you requested 4096 output tokens and your "
        "prompt contains at least 1 input tokens, for a total of at least 2049 tokens.",
        2048,
    ),
    "dashscope": ("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]", 30720),
    "anthropic": ("prompt is too long: 205000 tokens > 200000 maximum", 200000),
    "tgi": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens",
        4096,
    ),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_an_overflow_is_known_by_its_words_with_the_limit_it_names(name: str) -> None:
    text, limit = OVERFLOWS[name]
    assert responses.is_overflow(text)
    assert responses.limit_named(text) == limit
    assert not responses.is_filtered(text)


REQUEST = httpx.Request("POST", "http://x/v1/chat/completions")
CONTEXT = responses.Context("judge (m at http://x/v1)", ("sk-secret",), 1.0)


@pytest.mark.parametrize(
    ("cause", "again"),
    [
        *((error, False) for error in (httpx.UnsupportedProtocol("no scheme"), httpx.LocalProtocolError("header"))),
        ("\u201csk".encode, False),
        *((kind("away"), True) for kind in (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)),
        *((httpx.ProxyError("502"), True), (OSError("no route"), True), (None, True)),
        *((status, False) for status in (400, 401, 403, 404, 405, 413, 415, 422, 501, 505)),
        *((status, True) for status in (408, 409, 429, 500, 502, 503, 504, 529)),
    ],
)
def test_a_mistake_of_the_request_is_final_and_an_outage_is_not(cause, again) -> None:
    if isinstance(cause, int):
        response = httpx.Response(cause, request=REQUEST, json={"error": {"message": "no"}})
        error: Exception = openai.APIStatusError("no", response=response, body={"message": "no"})
    else:
        error = openai.APIConnectionError(request=REQUEST)
        if callable(cause):
            with pytest.raises(UnicodeError) as caught:
                cause("ascii")
            cause = caught.value
        error.__cause__ = cause
    failure = responses.read_error(error, CONTEXT)
    assert (failure.again is not responses.RetryReason.NO) == again == (not isinstance(failure.error, LLMRefused))


@pytest.mark.parametrize(
    "bad", ["\u201c", "\u00e9", "\n", "\r", "\t", "\x00", "\x7f", "\u200b", "\ufeff", "\u4e2d", "\ud800"]
)
def test_a_key_that_http_cannot_carry_is_refused_without_being_shown(bad, monkeypatch) -> None:
    settings = EndpointSettings(base_url="http://x/v1", model="m", api_key_env="MYKEY")
    monkeypatch.setattr("agentevolver.llm.endpoint.secret", lambda _: f"sk-abc{bad}def")
    with pytest.raises(LLMRefused, match=f"MYKEY holds .*U[+]{ord(bad):04X}") as caught:
        served_model(Role.JUDGE, settings)
    assert "abc" not in str(caught.value) and "\n" not in str(caught.value)

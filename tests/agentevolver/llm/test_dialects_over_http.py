"""What is sent over the wire in a dialect, and that a refusal costs one request alone."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agentevolver.llm import LLM, LLMContextOverflow, LLMRefused, LLMSettings, Role
from agentevolver.llm import pace as pace_module
from tests.agentevolver.llm.faulty_server import FaultyServer, Said

pytestmark = pytest.mark.service

ASK = [{"role": "user", "content": "hello?"}]


class Verdict(BaseModel):
    score: int


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pace_module, "runtime_folder", lambda: tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")


def settings(server: FaultyServer, **values: Any) -> LLMSettings:
    return LLMSettings.model_validate({"base_url": server.url, "model": "m", "timeout_s": 5.0, "tries": 2, **values})


def refusal(message: str, param: str | None = None, status: int = 400) -> Said:
    body = {
        "error": {"message": message, "type": "invalid_request_error", "param": param, "code": "unsupported_parameter"}
    }
    return Said(status=status, body=json.dumps(body).encode())


def strict(number: int, body: dict[str, Any]) -> Said:
    """A reasoning model of OpenAI, which says one thing at a time."""
    if "max_tokens" in body:
        return refusal(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
            "instead.",
            "max_tokens",
        )
    for name in ("temperature", "seed"):
        if name in body:
            return refusal(f"Unsupported value: '{name}' does not support {body[name]} with this model.", name)
    return Said('{"score": 1}')


async def test_what_a_server_refuses_is_learnt_once_for_all_roles_and_said_in_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="agentevolver")
    async with FaultyServer(strict) as server, LLM(settings(server)) as llm:
        assert (await llm.chat(Role.JUDGE, ASK, seed=3)).text == '{"score": 1}'
        assert len(server.requests) == 4
        assert (await llm.chat(Role.EXPLORER, ASK, seed=4)).text == '{"score": 1}'
    assert len(server.requests) == 5
    assert server.requests[-1].body == {"model": "m", "messages": ASK, "max_completion_tokens": 4096}
    assert [record.message.count("\n") for record in caplog.records] == [0, 0, 0]


async def test_a_response_format_that_is_refused_falls_back_to_the_prompt() -> None:
    def script(number: int, body: dict[str, Any]) -> Said:
        return (
            refusal("This response_format type is unavailable now")
            if "response_format" in body
            else Said('{"score": 1}')
        )

    async with FaultyServer(script) as server, LLM(settings(server, json_mode="schema")) as llm:
        for _ in range(2):
            assert (await llm.structured(Role.JUDGE, ASK, Verdict)).score == 1
    kinds = [request.body.get("response_format", {}).get("type") for request in server.requests]
    assert kinds == ["json_schema", "json_object", None, None]


@pytest.mark.parametrize(
    ("dialect", "kind"), [("openai", "json_schema"), ("dashscope", "json_object"), ("plain", None)]
)
async def test_json_is_asked_for_as_the_dialect_offers_it(dialect: str, kind: str | None) -> None:
    async with FaultyServer([Said('{"score": 1}')]) as server, LLM(settings(server, dialect=dialect)) as llm:
        await llm.structured(Role.JUDGE, ASK, Verdict)
    assert server.requests[0].body.get("response_format", {}).get("type") == kind


async def test_azure_is_sent_its_own_header_and_the_version() -> None:
    async with FaultyServer([Said("hi")]) as server:
        configured = settings(
            server, base_url=server.url.removesuffix("/v1"), dialect="azure", api_version="2024-10-21", model="mine"
        )
        async with LLM(configured) as llm:
            assert (await llm.chat(Role.JUDGE, ASK)).text == "hi"
    asked = server.requests[0]
    assert asked.headers["api-key"] == "sk-test" and "authorization" not in asked.headers
    assert asked.path == "/openai/deployments/mine/chat/completions?api-version=2024-10-21"


async def test_a_reply_that_was_given_too_much_room_is_given_less_and_an_overlong_prompt_is_not_tried_again() -> None:
    def script(number: int, body: dict[str, Any]) -> Said:
        prompt, reply = len(body["messages"][0]["content"]) // 2, body["max_tokens"]
        if prompt + reply > 1000:
            return refusal(
                f"This model's maximum context length is 1000 tokens. However, you requested {reply} output tokens "
                "and your prompt "
                f"contains {prompt} input tokens, for a total of {prompt + reply} tokens."
            )
        return Said("ok", usage={"prompt_tokens": prompt, "completion_tokens": 5})

    async with FaultyServer(script) as server, LLM(settings(server)) as llm:
        for _ in range(2):
            assert (await llm.chat(Role.JUDGE, [{"role": "user", "content": "x" * 400}])).text == "ok"
        assert [request.body["max_tokens"] for request in server.requests] == [4096, 736, 716]
        with pytest.raises(LLMContextOverflow):
            await llm.chat(Role.JUDGE, [{"role": "user", "content": "x" * 8000}])
        assert len(server.requests) == 4


async def test_a_refusal_that_no_change_helps_ends_the_call() -> None:
    async with (
        FaultyServer([refusal("Unsupported parameter: 'temperature'", "temperature")]) as server,
        LLM(settings(server)) as llm,
    ):
        with pytest.raises(LLMRefused, match="temperature"):
            await llm.chat(Role.JUDGE, ASK)
    assert len(server.requests) == 2


async def test_a_page_of_a_proxy_is_a_line() -> None:
    page = (
        b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body><h1>502</h1>"
        + b"x" * 5000
        + b"</body></html>"
    )
    async with (
        FaultyServer([Said(status=403, body=page, headers={"content-type": "text/html"})]) as server,
        LLM(settings(server)) as llm,
    ):
        with pytest.raises(LLMRefused, match="HTTP 403: a page, 502 Bad Gateway; check"):
            await llm.chat(Role.JUDGE, ASK)

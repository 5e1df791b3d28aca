"""The client against a server that is down, slow, overloaded, rude or wrong: what each leads to, and that nothing waits
for ever."""

from __future__ import annotations

import asyncio
import logging
import traceback
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from agentevolver.llm import (
    LLM,
    LLMContextOverflow,
    LLMError,
    LLMFiltered,
    LLMRefused,
    LLMReplyError,
    LLMSettings,
    LLMTimeout,
    LLMToolCall,
    LLMUnavailable,
    Role,
    ServedModel,
)
from tests.agentevolver.llm.faulty_server import FaultyServer, Said, hurry

pytestmark = pytest.mark.service

KEY = "sk-test-0123456789abcdefSECRET"
ASK = [{"role": "user", "content": "hello?"}]


class Verdict(BaseModel):
    score: int = Field(ge=0, le=100)
    reason: str


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def settings(server: FaultyServer, **values: Any) -> LLMSettings:
    return LLMSettings.model_validate({"base_url": server.url, "model": "m", "timeout_s": 5.0, "tries": 3, **values})


async def test_a_reply_comes_with_its_tokens_and_the_key_is_sent() -> None:
    async with FaultyServer([Said("hi")]) as server, LLM(settings(server)) as llm:
        reply = await llm.chat(Role.JUDGE, ASK, temperature=0.0)
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens, reply.cached) == ("hi", 10, 5, False)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.requests[0].body == {"model": "m", "messages": ASK, "temperature": 0.0, "max_tokens": 4096}


async def test_sampling_beyond_openai_is_sent_none_takes_away_and_unknown_names_are_refused() -> None:
    async with FaultyServer([Said("hi")]) as server, LLM(settings(server)) as llm:
        await llm.chat(Role.EXPLORER, ASK, top_k=20, max_tokens=None, seed=7)
        with pytest.raises(ValueError, match="temprature"):
            await llm.chat(Role.EXPLORER, ASK, temprature=1)
    assert server.requests[0].body == {"model": "m", "messages": ASK, "temperature": 0.7, "top_k": 20, "seed": 7}
    assert len(server.requests) == 1


@pytest.mark.parametrize("fault", [Said(status=500), Said(status=408), Said(manner="cut"), Said(None)])
async def test_what_another_try_may_change_is_tried_again(fault: Said) -> None:
    async with FaultyServer([fault, fault, Said("ok")]) as server, LLM(settings(server)) as llm:
        assert (await llm.chat(Role.JUDGE, ASK)).text == "ok"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Said(status=500, text="boom"), "HTTP 500: boom"),
        (Said(body=b'{"choices": [{"index"'), "no chat completion"),
    ],
)
async def test_the_tries_are_bounded_and_the_last_word_says_what_was_wrong(fault: Said, said: str) -> None:
    async with FaultyServer([fault]) as server, LLM(settings(server)) as llm:
        with pytest.raises(LLMUnavailable, match=said):
            await llm.chat(Role.JUDGE, ASK)
        assert llm.metrics()["llm/judge/errors"] == 1
    assert len(server.requests) == 3


async def test_a_server_that_does_not_answer_is_a_timeout() -> None:
    async with FaultyServer([Said(manner="hang")]) as server, LLM(settings(server, timeout_s=0.3, tries=2)) as llm:
        with pytest.raises(LLMTimeout, match=r"within 0\.3 s"):
            await llm.chat(Role.JUDGE, ASK)
    assert len(server.requests) == 2


async def test_a_server_that_never_comes_to_an_end_is_a_timeout() -> None:
    values = {"timeout_s": 0.3, "tries": 1}
    async with (
        FaultyServer([Said("x" * 500, manner="drip")]) as server,
        LLM(settings(server, **values), patience_s=0.3) as llm,
    ):
        with pytest.raises(LLMTimeout, match=r"did not finish its answer within 0\.6 s"):
            await llm.chat(Role.JUDGE, ASK)


DOWN = Said(status=503, text="back soon")


async def test_an_outage_is_waited_out_beyond_the_tries_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    def script(number: int, _: dict[str, Any]) -> Said:
        return DOWN if 1 <= number <= 20 else Said("ok")

    async with FaultyServer(script) as server, LLM(settings(server, tries=2)) as llm:
        await llm.chat(Role.EXPLORER, ASK)
        replies = await asyncio.gather(*(llm.chat(Role.JUDGE, ASK) for _ in range(4)))
    assert {reply.text for reply in replies} == {"ok"}
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 2 and "calls wait for it" in told[0] and "answers again" in told[1]


async def test_a_call_that_fails_while_others_are_answered_is_not_waited_for() -> None:
    def script(_: int, body: dict[str, Any]) -> Said:
        return Said(status=500) if body["messages"][0]["content"] == "bad" else Said("ok")

    async with FaultyServer(script) as server, LLM(settings(server)) as llm:

        async def others() -> None:
            while True:
                await llm.chat(Role.JUDGE, ASK)

        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            answered = group.create_task(others())
            await asyncio.sleep(0.05)
            with pytest.raises(LLMUnavailable, match="HTTP 500"):
                await llm.chat(Role.JUDGE, [{"role": "user", "content": "bad"}])
            answered.cancel()


@pytest.mark.parametrize("status", [400, 401, 422])
async def test_a_refusal_is_not_tried_again(status: int) -> None:
    async with FaultyServer([Said(status=status, text="no such thing")]) as server, LLM(settings(server)) as llm:
        with pytest.raises(LLMRefused, match=f"HTTP {status}: no such thing"):
            await llm.chat(Role.JUDGE, ASK)
    assert len(server.requests) == 1


async def test_an_over_long_prompt_is_an_overflow_with_its_limit() -> None:
    said = "This model's maximum context length is 64 tokens."
    async with FaultyServer([Said(status=400, text=said)]) as server, LLM(settings(server)) as llm:
        with pytest.raises(LLMContextOverflow, match="too long") as caught:
            await llm.chat(Role.JUDGE, ASK)
    assert caught.value.limit_tokens == 64
    assert [request.body["max_tokens"] for request in server.requests][1:] == [16], "the prompt itself is too long"


@pytest.mark.parametrize(
    "fault",
    [
        Said(status=400, text="Input data may contain inappropriate content."),
        Said("half", finish_reason="content_filter"),
    ],
    ids=["request", "reply"],
)
async def test_a_content_filters_refusal_is_told_from_others(fault: Said) -> None:
    async with FaultyServer([fault]) as server, LLM(settings(server)) as llm:
        with pytest.raises(LLMFiltered, match="content filter"):
            await llm.chat(Role.JUDGE, ASK)
    assert len(server.requests) == 1


TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}]


async def test_a_native_call_comes_without_a_text_and_is_kept_in_the_cache(tmp_path: Path) -> None:
    calls = [
        {"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"what": "milk"}'}},
        {"id": "2", "type": "function", "function": {"name": "find", "arguments": "milk, please"}},
    ]
    said = Said(None, finish_reason="tool_calls", message={"tool_calls": calls, "reasoning_content": "look first"})
    async with FaultyServer([said]) as server, LLM(settings(server, cache=tmp_path / "c.sqlite")) as llm:
        replies = [await llm.chat(Role.EXPLORER, ASK, tools=TOOLS) for _ in range(2)]
    assert [reply.tool_calls for reply in replies] == [
        (LLMToolCall("find", {"what": "milk"}), LLMToolCall("find", "milk, please"))
    ] * 2
    assert [(reply.text, reply.thinking, reply.cached) for reply in replies] == [
        ("", "look first", False),
        ("", "look first", True),
    ]
    assert [request.body["tools"] for request in server.requests] == [TOOLS]


async def test_a_model_that_thought_until_its_tokens_were_spent_is_asked_once_more_for_a_structured_reply() -> None:
    spent = Said("", finish_reason="length", message={"reasoning_content": "hm " * 50})
    async with FaultyServer([spent, Said('{"score": 90, "reason": "ok"}')]) as server, LLM(settings(server)) as llm:
        assert await llm.structured(Role.JUDGE, ASK, Verdict) == Verdict(score=90, reason="ok")
    assert server.requests[1].body["messages"][-2] == {"role": "assistant", "content": "(nothing)"}
    assert "spent all its tokens" in server.requests[1].body["messages"][-1]["content"]
    async with FaultyServer([spent]) as server, LLM(settings(server)) as llm:
        with pytest.raises(LLMReplyError, match="spent all its tokens"):
            await llm.structured(Role.JUDGE, ASK, Verdict)
    assert len(server.requests) == 2


async def test_no_more_calls_than_allowed_are_in_flight() -> None:
    async with FaultyServer([Said("ok", delay_s=0.02)]) as server, LLM(settings(server, concurrency=3)) as llm:
        replies = await asyncio.gather(*(llm.chat(Role.JUDGE, ASK) for _ in range(20)))
    assert len(replies) == 20
    assert server.most_in_flight == 3


async def test_a_cancelled_call_frees_its_place() -> None:
    script = [Said(manner="hang"), Said("ok")]
    async with FaultyServer(script) as server, LLM(settings(server, concurrency=1)) as llm:
        task = asyncio.create_task(llm.chat(Role.JUDGE, ASK))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await asyncio.wait_for(llm.chat(Role.JUDGE, ASK), 2)).text == "ok"


# ---- structured replies ----


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"score": 90, "reason": "it is', "is broken"),
        ('{"score": 900, "reason": "ok"}', "score: Input should be less than or equal to 100"),
        ('{"score": 90, "reason": "a"} or {"score": 10, "reason": "b"}', "2 different answers"),
        ('<think>hm {"score": 90, "reason": "ok"}', "inside its thinking"),
    ],
)
async def test_a_wrong_reply_is_shown_to_the_model_once_and_repaired(text: str, problem: str) -> None:
    async with (
        FaultyServer([Said(text), Said('{"score": 5, "reason": "fixed"}')]) as server,
        LLM(settings(server)) as llm,
    ):
        assert (await llm.structured(Role.JUDGE, ASK, Verdict)).score == 5
        assert llm.metrics()["llm/judge/repairs"] == 1
    told = server.requests[1].body["messages"]
    assert told[1] == {"role": "assistant", "content": text}
    assert problem in told[2]["content"]
    assert '"score"' in told[2]["content"]


async def test_a_reply_that_stays_wrong_is_a_typed_error_with_its_text() -> None:
    async with FaultyServer([Said("no"), Said("still no")]) as server, LLM(settings(server)) as llm:
        with pytest.raises(LLMReplyError, match="also after one repair") as caught:
            await llm.structured(Role.JUDGE, ASK, Verdict)
        assert caught.value.text == "still no"
        assert llm.metrics()["llm/judge/errors"] == 1
    assert len(server.requests) == 2


# ---- keys ----


async def test_a_missing_key_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    async with FaultyServer([Said()]) as server:
        configured = settings(server)
        async with LLM(configured) as llm:
            with pytest.raises(LLMRefused, match="OPENAI_API_KEY is not set"):
                await llm.chat(Role.JUDGE, ASK)
        async with LLM(settings(server, api_key_env=None)) as llm:
            assert (await llm.chat(Role.JUDGE, ASK)).text == "hello"


@pytest.mark.parametrize("status", [401, 500])
async def test_a_key_never_shows_in_errors_logs_or_settings(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="agentevolver")
    echo = Said(status=status, text=f"Incorrect API key provided: {KEY}, header 'Bearer {KEY}', sk-other-987654321")
    async with FaultyServer([echo]) as server, LLM(settings(server), patience_s=0.2) as llm:
        with pytest.raises(LLMError) as caught:
            await llm.chat(Role.JUDGE, ASK)
        shown = [str(caught.value), "".join(traceback.format_exception(caught.value)), caplog.text, repr(llm.settings)]
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert not [text for text in shown if "0123456789" in text or "987654321" in text]


async def test_what_runs_on_this_machine_is_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with FaultyServer([Said("direct")]) as server, LLM(settings(server)) as llm:
        assert (await llm.chat(Role.JUDGE, ASK)).text == "direct"


# ---- the policy as a role's model ----


async def test_a_role_is_served_by_the_policy_wherever_that_is() -> None:
    async with FaultyServer([Said("a")]) as one, FaultyServer([Said("b")]) as other:
        where = [None, ServedModel(one.url, "policy-0", "token"), ServedModel(other.url, "policy-1")]
        configured = LLMSettings.model_validate({"base_url": "policy", "tries": 1})

        async def source() -> ServedModel | None:
            return where.pop(0)

        async with LLM(configured, policy=source) as llm:
            with pytest.raises(LLMUnavailable, match="not served"):
                await llm.chat(Role.VERIFIER, ASK)
            assert [(await llm.chat(Role.VERIFIER, ASK)).text for _ in range(2)] == ["a", "b"]
    assert one.requests[0].body["model"] == "policy-0"
    assert one.requests[0].headers["authorization"] == "Bearer token"

"""Calls against servers that limit their rate, over real connections, in windows shorter than a minute."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from agentevolver.llm import LLM, LLMRefused, LLMSettings, LLMUnavailable, Role
from tests.agentevolver.llm.faulty_server import FaultyServer, Said, hurry

pytestmark = pytest.mark.service

ASK = [{"role": "user", "content": "hello?"}]
LIMITED = Said(status=429, text="Too many requests")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def settings(server: FaultyServer, **values: Any) -> LLMSettings:
    return LLMSettings.model_validate(
        {"base_url": server.url, "model": "m", "api_key_env": None, "timeout_s": 5.0, **values}
    )


async def test_every_call_survives_a_server_that_takes_few_a_minute_and_does_not_say_when_to_come_again() -> None:
    # 90 a minute, each minute in 0.6 s.
    taken: dict[int, int] = {}

    def script(number: int, body: dict[str, Any]) -> Said:
        window = int(time.monotonic() / 0.06)
        taken[window] = taken.get(window, 0) + 1
        return LIMITED if taken[window] > 9 else Said("ok")

    async with FaultyServer(script) as server, LLM(settings(server)) as llm:
        replies = await asyncio.gather(
            *(llm.chat(role, ASK) for role in (Role.EXPLORER, Role.JUDGE) for _ in range(45))
        )
    assert len(replies) == 90 and {reply.text for reply in replies} == {"ok"}


async def test_a_server_that_asks_for_a_pause_beyond_all_patience_is_given_up_at_once() -> None:
    said = Said(status=429, headers={"Retry-After": "7200"})
    async with FaultyServer([said]) as server, LLM(settings(server)) as llm:
        with pytest.raises(LLMUnavailable, match="asks to wait 7200 s"):
            await llm.chat(Role.JUDGE, ASK)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "busy",
    [
        Said(status=503, text="later", headers={"retry-after": "0.05"}),
        Said(body=b'{"error": {"code": 429, "message": "Rate limit exceeded upstream"}}'),
    ],
    ids=["503 with a time", "200 with an error"],
)
async def test_what_says_that_it_is_busy_is_waited_for_beyond_the_tries(busy: Said) -> None:
    async with FaultyServer([busy] * 4 + [Said("ok")]) as server, LLM(settings(server, tries=1)) as llm:
        assert (await llm.chat(Role.JUDGE, ASK)).text == "ok"
    assert len(server.requests) == 5


async def test_an_account_without_quota_is_a_refusal_although_it_is_a_429() -> None:
    body = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    said = Said(status=429, body=json.dumps(body).encode())
    async with FaultyServer([said]) as server, LLM(settings(server)) as llm:
        with pytest.raises(LLMRefused, match="no quota left"):
            await llm.chat(Role.JUDGE, ASK)

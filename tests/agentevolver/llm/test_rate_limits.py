"""Calls against servers that limit their rate, over real connections, in windows shorter than a minute."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentevolver.llm import LLM, LLMRefused, LLMSettings, LLMUnavailable, Role
from agentevolver.llm import pace as pace_module
from tests.agentevolver.llm.faulty_server import FaultyServer, Said

pytestmark = pytest.mark.service

ASK = [{"role": "user", "content": "hello?"}]
LIMITED = Said(status=429, text="Too many requests")


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pace_module, "runtime_folder", lambda: tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")


def settings(server: FaultyServer, **values: Any) -> LLMSettings:
    return LLMSettings.model_validate({"base_url": server.url, "model": "m", "timeout_s": 5.0, **values})


class Limited:
    """The script of a server that takes so many requests in each window and refuses the others, without a word of when
    to come again."""

    def __init__(self, requests: int, window_s: float, answer: Said | None = None) -> None:
        self.requests, self.window_s = requests, window_s
        self.answer = answer or Said("ok")
        self.taken: dict[int, int] = {}
        self.refused = 0

    def __call__(self, number: int, body: dict[str, Any]) -> Said:
        window = int(time.monotonic() / self.window_s)
        self.taken[window] = self.taken.get(window, 0) + 1
        if self.taken[window] > self.requests:
            self.refused += 1
            return LIMITED
        return self.answer


async def test_every_call_survives_a_server_that_takes_few_a_minute_and_does_not_say_when_to_come_again() -> None:
    # 90 a minute, each minute in a second; the tries are as many as ever.
    script = Limited(9, 0.6)
    async with FaultyServer(script) as server, LLM(settings(server)) as llm:
        began = time.monotonic()
        replies = await asyncio.gather(
            *(llm.chat(role, ASK) for role in (Role.EXPLORER, Role.JUDGE) for _ in range(20))
        )
        took = time.monotonic() - began
        assert len(replies) == 40 and {reply.text for reply in replies} == {"ok"}
        assert took < 40.0, "four windows and a half of the server's"
        assert {llm._endpoints[role].server for role in (Role.EXPLORER, Role.JUDGE)} == {
            next(iter(llm._servers.values()))
        }
    # The first volley alone is refused 23 times; eight runs had 28 to 41 in all. Tries that nobody holds back have five
    # for each call.
    assert script.refused < 100


async def test_a_server_that_limits_for_ever_is_given_up_after_the_time_that_is_set() -> None:
    async with (
        FaultyServer([LIMITED]) as server,
        LLM(settings(server, rate_limit_timeout_s=0.8, max_wait_s=0.1)) as llm,
    ):
        began = time.monotonic()
        with pytest.raises(LLMUnavailable, match=r"HTTP 429.*rate_limit_timeout_s = 0\.8"):
            await llm.chat(Role.JUDGE, ASK)
        assert 0.4 <= time.monotonic() - began < 3.0
    assert len(server.requests) > 5, "more than the tries"


@pytest.mark.parametrize(
    "busy",
    [
        Said(status=529, text="Overloaded"),
        Said(status=503, text="The model is overloaded, come again"),
        Said(status=503, text="later", headers={"retry-after": "0.1"}),
        Said(status=429, text="Rate limit reached. Please try again in 120ms."),
        Said(body=b'{"error": {"code": 429, "message": "Rate limit exceeded upstream"}}'),
    ],
    ids=["529", "503 overloaded", "503 with a time", "time in the text", "200 with an error"],
)
async def test_what_says_that_it_is_busy_is_waited_for_beyond_the_tries(busy: Said) -> None:
    script = [busy] * 4 + [Said("ok")]
    async with FaultyServer(script) as server, LLM(settings(server, tries=1, max_wait_s=0.2)) as llm:
        assert (await llm.chat(Role.JUDGE, ASK)).text == "ok"
    assert len(server.requests) == 5


async def test_a_quota_per_time_is_a_rate_limit_where_the_server_calls_it_so() -> None:
    body = {
        "error": {
            "message": "Allocated quota exceeded, please increase your quota limit.",
            "code": "insufficient_quota",
        }
    }
    script = [Said(status=429, body=json.dumps(body).encode()), Said("ok")]
    async with FaultyServer(script) as server, LLM(settings(server, max_wait_s=0.1)) as llm:
        assert (await llm.chat(Role.JUDGE, ASK)).text == "ok"
    spent = {
        "error": {"message": "You exceeded your current quota, please check your plan", "code": "insufficient_quota"}
    }
    script = [Said(status=429, body=json.dumps(spent).encode()), Said("ok")]
    async with FaultyServer(script) as server, LLM(settings(server, max_wait_s=0.1)) as llm:
        with pytest.raises(LLMRefused, match="no quota left"):
            await llm.chat(Role.JUDGE, ASK)
    async with FaultyServer(script) as server, LLM(settings(server, max_wait_s=0.1, dialect="dashscope")) as llm:
        assert (await llm.chat(Role.JUDGE, ASK)).text == "ok"


async def test_requests_per_minute_are_kept_to_as_they_are_set() -> None:
    async with FaultyServer([Said("ok")]) as server, LLM(settings(server, requests_per_minute=1200)) as llm:
        began = time.monotonic()
        # 3 s of them may come at once: 57; the others every 1/19 s.
        await asyncio.gather(*(llm.chat(Role.JUDGE, ASK) for _ in range(67)))
        assert 0.3 <= time.monotonic() - began < 30.0


async def test_where_headers_say_that_nothing_is_left_the_next_call_waits() -> None:
    spent = {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "500ms",
        "x-ratelimit-limit-requests": "60",
    }
    async with FaultyServer([Said("a", headers=spent), Said("b")]) as server, LLM(settings(server)) as llm:
        await llm.chat(Role.JUDGE, ASK)
        began = time.monotonic()
        assert (await llm.chat(Role.EXPLORER, ASK)).text == "b"
        assert 0.4 <= time.monotonic() - began < 2.0
        assert next(iter(llm._servers.values())).told.requests.limit == 60


def closed_for(path: Path, account: str) -> float:
    """The seconds for which a file says that nobody is to ask."""
    with contextlib.closing(pace_module.Pace(account, path)) as pace:
        return pace.closed_for()


OTHER = """
import asyncio, sys
from pathlib import Path
from agentevolver.llm import LLM, LLMSettings, Role
from agentevolver.llm import pace
pace.runtime_folder = lambda: Path(sys.argv[2])
async def main():
    async with LLM(LLMSettings(base_url=sys.argv[1], model="m", max_wait_s=60)) as llm:
        await llm.chat(Role.JUDGE, [{"role": "user", "content": "other"}])
asyncio.run(main())
"""


async def test_a_pause_that_one_process_was_asked_for_holds_for_another_also_after_the_first_was_killed(
    tmp_path: Path,
) -> None:
    def script(number: int, body: dict[str, Any]) -> Said:
        return (
            Said(status=429, headers={"retry-after": "1.5"})
            if body["messages"][0]["content"] == "other"
            else Said("ok")
        )

    async with FaultyServer(script) as server, LLM(settings(server)) as llm:
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        child = subprocess.Popen([sys.executable, "-c", OTHER, server.url, str(tmp_path)], env=env)
        account = pace_module.account_of(server.url, "sk-test")
        async with asyncio.timeout(60):
            while not (server.requests and closed_for(tmp_path / pace_module.FILE, account)):
                await asyncio.sleep(0.02)
        child.kill()
        child.wait()
        asked = time.monotonic()
        assert (await llm.chat(Role.EXPLORER, ASK)).text == "ok"
        assert time.monotonic() - asked > 0.8
    assert len(server.requests) == 2

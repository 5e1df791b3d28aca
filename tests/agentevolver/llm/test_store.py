"""What is kept on disk: the cache of replies, and the ledger whose budget ends a run before the next call."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agentevolver.llm import (
    LLM,
    BudgetExceeded,
    BudgetSettings,
    Ledger,
    LedgerError,
    LLMError,
    LLMReplyError,
    LLMSettings,
    Role,
    ServedModel,
    Usage,
)
from agentevolver.llm.store import ReplyCache, Stored, cache_key
from tests.agentevolver.llm.faulty_server import FaultyServer, Said

ASK = [{"role": "user", "content": "hello?"}]
NOTHING = Usage()


class Number(BaseModel):
    number: int


def settings(server: FaultyServer, **values: Any) -> LLMSettings:
    return LLMSettings.model_validate({"base_url": server.url, "model": "m", "api_key_env": None, "tries": 1, **values})


async def test_the_same_question_is_asked_once(tmp_path: Path) -> None:
    configured: dict[str, Any] = {"cache": tmp_path / "deep" / "cache.sqlite"}
    async with FaultyServer(lambda n, _: Said(f"reply {n}")) as server:
        async with LLM(settings(server, **configured)) as llm:
            first = await llm.chat(Role.JUDGE, ASK)
            again = await llm.chat(Role.JUDGE, ASK)
            other = await llm.chat(Role.JUDGE, ASK, seed=1)
            assert llm.metrics()["llm/judge/cached"] == 1
            assert llm.metrics()["llm/judge/calls"] == 2
        async with LLM(settings(server, **configured)) as llm:
            restarted = await llm.chat(Role.SUMMARISER, ASK)
        async with LLM(settings(server, **configured, roles={"judge": {"model": "n"}})) as llm:
            elsewhere = await llm.chat(Role.JUDGE, ASK)
    assert [r.text for r in (first, again, other, restarted, elsewhere)] == [
        "reply 0",
        "reply 0",
        "reply 1",
        "reply 0",
        "reply 2",
    ]
    assert [r.cached for r in (first, again, other, restarted, elsewhere)] == [False, True, False, True, False]
    assert len(server.requests) == 3


async def test_useless_replies_do_not_stay_in_the_cache(tmp_path: Path) -> None:
    script = [Said("no"), Said("no"), Said('{"number": 3}')]
    async with FaultyServer(script) as server, LLM(settings(server, cache=tmp_path / "c.sqlite")) as llm:
        with pytest.raises(LLMReplyError):
            await llm.structured(Role.JUDGE, ASK, Number)
        assert (await llm.structured(Role.JUDGE, ASK, Number)).number == 3


async def test_the_policys_replies_are_not_cached(tmp_path: Path) -> None:
    async with FaultyServer(lambda n, _: Said(f"reply {n}")) as server:
        configured = settings(server, cache=tmp_path / "c.sqlite", roles={"verifier": {"base_url": "policy"}})
        async with LLM(configured, policy=ServedModel(server.url, "p")) as llm:
            assert [(await llm.chat(Role.VERIFIER, ASK)).text for _ in range(2)] == ["reply 0", "reply 1"]


def test_keys_tell_apart_whatever_decides_a_reply() -> None:
    base = cache_key("u", "m", ASK, {"temperature": 0})
    others = [
        cache_key("v", "m", ASK, {"temperature": 0}),
        cache_key("u", "n", ASK, {"temperature": 0}),
        cache_key("u", "m", [*ASK, *ASK], {"temperature": 0}),
        cache_key("u", "m", ASK, {"temperature": 1}),
    ]
    assert len({base, *others}) == 5
    assert base == cache_key("u", "m", ASK, {"temperature": 0})
    assert cache_key("u", "m", [{"content": "\ud800"}], {})


def test_a_file_that_is_no_database_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    path.write_bytes(b"this is no database, and long enough to be looked at" * 50)
    cache = ReplyCache(path)
    cache.put("k", Stored("text", 1, 2, "stop"))
    assert cache.get("k") == Stored("text", 1, 2, "stop")
    assert list(tmp_path.glob("cache.sqlite.unreadable-*"))
    cache.close()


_WRITER = """
import sys
from pathlib import Path
from agentevolver.llm.store import ReplyCache, Stored
from agentevolver.llm.store import Ledger, Usage
name, folder = sys.argv[1], Path(sys.argv[2])
cache, ledger = ReplyCache(folder / "c.sqlite"), Ledger(folder / "l.sqlite")
print("ready", flush=True)
i = 0
while i < 200 or name == "endless":
    cache.put(f"{name}-{i}", Stored("x" * 500, 1, 1, "stop"))
    ledger.settle("judge", Usage(), Usage(1, 2, 3, 0.5))
    i += 1
    if name == "endless" and i == 50:
        print("going", flush=True)
"""


@pytest.mark.service
def test_processes_share_the_files_and_a_kill_breaks_neither(tmp_path: Path) -> None:
    def start(name: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", _WRITER, name, str(tmp_path)], stdout=subprocess.PIPE, text=True)

    endless = start("endless")
    assert endless.stdout is not None
    assert [endless.stdout.readline().strip() for _ in range(2)] == ["ready", "going"]
    others = [start(str(i)) for i in range(3)]
    endless.kill()
    endless.wait()
    endless.stdout.close()
    for other in others:
        other.communicate(timeout=60)
        assert other.returncode == 0
    cache, ledger = ReplyCache(tmp_path / "c.sqlite"), Ledger(tmp_path / "l.sqlite")
    assert all(cache.get(f"{name}-{i}") for name in range(3) for i in range(200))
    assert all(cache.get(f"endless-{i}") for i in range(50))
    spent = ledger.spent()
    assert spent.calls >= 650
    assert spent.tokens == 5 * spent.calls
    assert spent.cost == pytest.approx(0.5 * spent.calls)
    cache.close()
    ledger.close()


# ---- the ledger and the budget ----


async def test_the_budget_ends_the_run_before_the_call_that_it_cannot_pay(tmp_path: Path) -> None:
    configured: dict[str, Any] = {"ledger": tmp_path / "l.sqlite", "budget": {"max_tokens": 45}}
    async with FaultyServer([Said()]) as server:
        async with LLM(settings(server, **configured)) as llm:
            for _ in range(2):
                await llm.chat(Role.JUDGE, ASK)
        async with LLM(settings(server, **configured)) as llm:
            await llm.chat(Role.EXPLORER, ASK)
            with pytest.raises(BudgetExceeded, match="45 tokens is spent: 45 were used"):
                await llm.chat(Role.EXPLORER, ASK)
            assert llm.metrics()["llm/spent_tokens"] == 45
    assert len(server.requests) == 3


async def test_a_cost_budget_counts_prices_and_cached_replies_are_free(tmp_path: Path) -> None:
    configured = {"price_in": 1e5, "price_out": 0.0, "budget": {"max_cost": 2.5}, "cache": tmp_path / "c.sqlite"}
    async with FaultyServer([Said()]) as server, LLM(settings(server, **configured)) as llm:
        await llm.chat(Role.JUDGE, ASK)
        await llm.chat(Role.JUDGE, ASK, seed=1)
        with pytest.raises(BudgetExceeded, match=r"llm\.budget\.max_cost"):
            await llm.chat(Role.JUDGE, [{"role": "user", "content": "x" * 40}], seed=2)
        assert (await llm.chat(Role.JUDGE, ASK)).cached
    assert len(server.requests) == 2


async def test_calls_in_flight_count_against_the_budget() -> None:
    async with FaultyServer([Said(delay_s=0.1)]) as server, LLM(settings(server, budget={"max_tokens": 100})) as llm:
        await llm.chat(Role.JUDGE, ASK)
        results = await asyncio.gather(*(llm.chat(Role.JUDGE, ASK) for _ in range(30)), return_exceptions=True)
        refused = [r for r in results if isinstance(r, BudgetExceeded)]
        assert len(refused) + sum(not isinstance(r, BaseException) for r in results) == 30
        assert len(refused) == 25
        assert llm.ledger.spent().tokens == 90
    assert len(server.requests) == 31 - len(refused)


async def test_a_failed_call_gives_its_share_of_the_budget_back() -> None:
    faults = [Said(status=400), Said(status=500), Said()]
    async with FaultyServer(faults) as server, LLM(settings(server, budget={"max_tokens": 20})) as llm:
        for _ in range(2):
            with pytest.raises(LLMError, match="HTTP"):
                await llm.chat(Role.JUDGE, ASK)
        await llm.chat(Role.JUDGE, ASK)


THOUGHT = {"prompt_tokens": 10, "completion_tokens": 4096, "total_tokens": 4106}
USED_IN_ERROR = b'{"error": {"message": "the model broke off"}, "usage": {"prompt_tokens": 7, "completion_tokens": 3}}'


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("faults", "tokens"),
    [
        ([Said("", finish_reason="length", usage=THOUGHT), Said()], 4106 + 15),
        ([Said(status=500, body=USED_IN_ERROR)] * 3, 10),
    ],
    ids=["all thought", "error with usage"],
)
async def test_what_was_billed_and_cannot_be_used_is_in_the_ledger_and_counts_against_the_budget(
    faults: list[Said], tokens: int, tmp_path: Path
) -> None:
    configured: dict[str, Any] = {"tries": 3, "ledger": tmp_path / "l.sqlite", "price_out": 1e6}
    async with FaultyServer([*faults, Said()]) as server:
        async with LLM(settings(server, **configured)) as llm:
            with pytest.raises(LLMError):
                await llm.structured(Role.JUDGE, ASK, Number)
            assert llm.ledger.spent().tokens == tokens
            assert llm.metrics()["llm/judge/cost"] == llm.ledger.spent().completion_tokens
        async with LLM(settings(server, budget={"max_tokens": tokens}, **configured)) as llm:
            with pytest.raises(BudgetExceeded, match=f"{tokens} were used"):
                await llm.chat(Role.JUDGE, ASK)
    assert len(server.requests) == len(faults)


def test_a_broken_ledger_is_named_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    path.write_bytes(b"what was spent must not be forgotten" * 100)
    with pytest.raises(LedgerError, match=r"l\.sqlite"):
        Ledger(path)
    assert path.exists()


def test_a_ledger_that_cannot_be_written_counts_on_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "l.sqlite"
    ledger = Ledger(path, BudgetSettings(max_tokens=10))
    ledger.settle("judge", NOTHING, Usage(1, 1, 1, 0.0))
    with sqlite3.connect(path) as other:
        other.execute("ALTER TABLE usage RENAME TO elsewhere")
    ledger.settle("judge", NOTHING, Usage(1, 4, 4, 0.0))
    with pytest.raises(BudgetExceeded):
        ledger.begin(Usage(1, 1, 0, 0.0))
    with sqlite3.connect(path) as other:
        other.execute("ALTER TABLE elsewhere RENAME TO usage")
    ledger.close()
    assert Ledger(path).spent() == Usage(2, 5, 5, 0.0)
    assert caplog.text.count("counted in memory") == 1

"""The client against a real server of a scripted player: what it returns, what it asks again, what it raises."""

import asyncio
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from agentevolver.coevolve.player.client import (
    PlayerClient,
    PlayerRefused,
    PlayerUnavailable,
    PlayFailed,
)
from agentevolver.coevolve.types import Play
from agentevolver.types import Task
from agentevolver.utils.health import PLAYER
from agentevolver.utils.net import take_any_port
from agentevolver.utils.retry import RetryPolicy
from tests.agentevolver.coevolve.players import ScriptedPlayer, answered, served

pytestmark = pytest.mark.service

TASK = Task("t", "calc", metadata={"env_params": {"problem": {"question": "left 3 f 4"}}})
SOON = RetryPolicy(tries=3, budget_s=5.0, first_wait_s=0.01, max_wait_s=0.02)


def by_number(checkpoint: Path, task: Task, number: int, name: str) -> Play:
    return answered(f"{name}.{number}", number)


async def test_plays_come_back_in_order_with_all_their_fields() -> None:
    player = ScriptedPlayer(by_number)
    async with served(player) as url, PlayerClient(url, patience=SOON) as client:
        plays = await client.play("/there", TASK, 3, "r1.label.17", validation=True)
    assert plays == [by_number(Path(), TASK, number, "r1.label.17") for number in range(3)]
    assert player.asked == [("/there", TASK, 3, "r1.label.17", True)]


async def test_a_failed_episode_is_an_error_that_says_why_and_is_asked_once() -> None:
    player = ScriptedPlayer(by_number)
    player.error = PlayFailed("episode 2 of t: env_error: connection refused")
    async with served(player) as url, PlayerClient(url, patience=SOON) as client:
        with pytest.raises(PlayFailed, match="episode 2 of t: env_error"):
            await client.play("/there", TASK, 3, "x")
    assert len(player.asked) == 1


async def test_what_will_never_be_played_is_refused_and_asked_once() -> None:
    player = ScriptedPlayer(by_number)
    player.error = PlayerRefused("/there is of another architecture")
    async with served(player) as url, PlayerClient(url, patience=SOON) as client:
        with pytest.raises(PlayerRefused, match="another architecture"):
            await client.play("/there", TASK, 3, "x")
        player.error = None
        for wrong in (0, 100_000):
            with pytest.raises(PlayerRefused, match="n: "):
                await client.play("/there", TASK, wrong, "x")
        odd = {"env_type": "", "task_id": 3, "query": 5, "open_query": "yes", "metadata": {"env_params": [1]}}
        for field, value in odd.items():
            with pytest.raises(PlayerRefused, match=f"HTTP 400: task.*{field}"):
                await client.play("/there", replace(TASK, **{field: value}), 1, "x")
    assert len(player.asked) == 1


async def test_a_server_that_stops_is_asked_again_until_the_next_one_answers() -> None:
    player, port = ScriptedPlayer(by_number), take_any_port()
    patient = RetryPolicy(tries=500, budget_s=30.0, first_wait_s=0.02, max_wait_s=0.05)
    async with PlayerClient(f"http://127.0.0.1:{port}", patience=patient) as client:
        asking = asyncio.create_task(client.play("/there", TASK, 2, "x"))
        await asyncio.sleep(0.2)
        assert not asking.done()
        async with served(player, port=port):
            assert [play.answer for play in await asking] == ["x.0", "x.1"]


async def test_a_server_that_stays_away_is_an_error_and_never_a_number() -> None:
    player = ScriptedPlayer(by_number)
    player.error = PlayerUnavailable("the engine has died")
    url = f"http://127.0.0.1:{take_any_port()}"
    async with PlayerClient(url, patience=SOON) as client:
        with pytest.raises(PlayerUnavailable, match="asked 3 times"):
            await client.play("/there", TASK, 2, "x")
    quick = RetryPolicy(tries=2, first_wait_s=0.01, max_wait_s=0.01)
    async with served(player) as url, PlayerClient(url, patience=quick) as client:
        with pytest.raises(PlayerUnavailable, match="the engine has died"):
            await client.play("/there", TASK, 2, "x")
    assert len(player.asked) == 2


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"checkpoint": "/c", "task": {}, "n": 1, "name": "x"}',
        b'{"checkpoint": "/c", "task": {"task_id": "t", "env_type": "e", "colour": 1}, "n": 1, "name": "x"}',
        b'{"checkpoint": "", "task": {"task_id": "t", "env_type": "e"}, "n": 1, "name": "x"}',
        b'{"checkpoint": "/c", "task": {"task_id": "t", "env_type": "e"}, "n": "1", "name": "x"}',
        b'{"checkpoint": "/c", "task": {"task_id": "t", "env_type": "e"}, "n": 1, "name": "x", "seed": 1}',
        b'{"checkpoint": "/c", "task": {"task_id": "\\ud800", "env_type": "e"}, "n": 1, "name": "x"}',
        b"[" * 100_000,
    ],
)
async def test_a_body_that_cannot_be_read_is_400(body: bytes) -> None:
    player = ScriptedPlayer(by_number)
    async with served(player) as url, httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"{url}/play", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400 and answer.json()["detail"]
        health = (await client.get(f"{url}/healthz")).json()
        assert (health["status"], health["name"]) == ("ok", PLAYER)
    assert not player.asked


async def test_the_token_is_asked_for() -> None:
    player = ScriptedPlayer(by_number)
    async with served(player, "right") as url:
        async with PlayerClient(url, "wrong", patience=SOON) as client:
            with pytest.raises(PlayerRefused, match="HTTP 401"):
                await client.play("/there", TASK, 1, "x")
        async with PlayerClient(url, "right", patience=SOON) as client:
            assert len(await client.play("/there", TASK, 1, "x")) == 1


async def test_a_caller_that_goes_away_takes_its_episodes_with_it() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedPlayer):
        async def play(
            self, checkpoint: Path | str, task: Task, n: int, name: str, validation: bool = False
        ) -> list[Play]:
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()
            return []

    async with served(Slow(by_number)) as url, PlayerClient(url, patience=SOON) as client:
        asking = asyncio.create_task(client.play("/there", TASK, 1, "x"))
        await began.wait()
        asking.cancel()
        await asyncio.wait_for(ended.wait(), 10)

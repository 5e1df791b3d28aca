"""A process of its own for each instance: whatever happens in one reaches no other, and no process outlives its
instance."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from functools import partial

import psutil
import pytest
from local_hosts import LONELY, Http, Running, eventually, say, serving, started_here

from env_service.errors import InstanceLost
from env_service.hosting.wire import unpack

pytestmark = pytest.mark.service


def ended(process: psutil.Process) -> bool:
    """Whether the process has ended, reaped or not."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def process_of(running: Running, name: str) -> int:
    """Create an instance and return its process id."""
    await running.service.create("lonely", "t1", name, {})
    return int(unpack(await running.service.step(name, say("!pid"), {}, None))["state"][0]["content"])


async def test_creates_come_from_the_warm_stock_and_bursts_beyond_it_are_served() -> None:
    async with serving(LONELY, warm=4) as running:
        (pool,) = running.service._pools.values()
        stock = {worker.link.pid for worker in pool.workers}
        started = time.perf_counter()
        await running.service.create("lonely", "t1", "first", {})
        assert time.perf_counter() - started < 0.2
        assert running.service.instances["first"].worker.link.pid in stock
        await asyncio.gather(*(running.service.create("lonely", "t1", f"i{n}", {}) for n in range(30)))
        await eventually(lambda: len(pool.workers) == 31 + 4)
        assert len({os.getpid(), *(worker.link.pid for worker in pool.workers)}) == 36
        await asyncio.gather(*(running.service.release(name) for name in list(running.service.instances)))
        await eventually(lambda: len(pool.workers) == 4)
    await eventually(lambda: all(map(ended, started_here())))


async def test_a_killed_process_in_mid_step_loses_its_instance_only() -> None:
    async with serving(LONELY) as running:
        service = running.service
        victim = await process_of(running, "victim")
        await process_of(running, "other")
        stepping = asyncio.create_task(service.step("victim", say("!sleep 30"), {}, 0))
        await asyncio.sleep(0.1)
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(InstanceLost, match=r"its process .* ended"):
            await stepping
        assert unpack(await service.step("other", say(4), {}, 0))["state"][0]["content"] == "4"
        assert await service.release("victim") is True
        await service.create("lonely", "t1", "victim", {})


async def test_processes_that_an_environment_started_end_with_it_daemons_too() -> None:
    async with serving(LONELY) as running:
        await running.service.create("lonely", "t1", "a", {})
        started = unpack(await running.service.step("a", say("!spawn"), {}, None))["info"]["pids"]
        assert len(started) == 3 and all(psutil.pid_exists(pid) for pid in started)
        await running.service.release("a")
        await eventually(lambda: not any(psutil.pid_exists(pid) for pid in started))


async def test_secrets_of_the_service_do_not_reach_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hidden")
    monkeypatch.setenv("WANTED_TOKEN", "shown")
    monkeypatch.setenv("RAY_ADDRESS", "of the service")
    async with serving(LONELY, pass_env=("WANTED_TOKEN",)) as running, Http(running.url) as http:
        await http.post("/create", {"task_id": "t1", "instance_id": "a"})
        _, body, _ = await http.post("/step", {"instance_id": "a", "messages": say("!environ")})
        names = body["data"]["info"]["names"]
        assert not {"SOME_API_KEY", "RAY_ADDRESS"} & {*names} and "WANTED_TOKEN" in names


async def test_siblings_draw_different_random_numbers() -> None:
    async with serving(LONELY) as running:
        drawn = set()
        for name in "abcd":
            await running.service.create("lonely", "t1", name, {})
            drawn.add(unpack(await running.service.step(name, say("!random"), {}, None))["info"]["number"])
        assert len(drawn) == 4


async def test_creates_right_after_the_death_of_a_fork_server_find_living_processes() -> None:
    async with serving(LONELY, warm=3) as running:
        for number in range(4):
            fork_server = psutil.Process(await process_of(running, f"i{number}")).parent()
            assert fork_server is not None
            fork_server.kill()
            # Its workers live until the kernel has taken it apart; one created before that may be lost at its step.
            await eventually(partial(ended, fork_server))
            await running.service.create("lonely", "t1", f"j{number}", {})
            await running.service.get_env_profile("lonely", {})
        for name in list(running.service.instances):
            await running.service.release(name)
        assert running.service._taken == {"lonely": 0}


async def test_a_process_warms_up_while_it_waits_so_that_a_create_is_quick() -> None:
    async with serving({"warm": "counter_envs:WarmCounter"}, warm=1) as running:
        await asyncio.sleep(1.0)
        started = time.perf_counter()
        state = unpack(await running.service.create("warm", "t1", "a", {}))
        assert time.perf_counter() - started < 0.3
        assert state["info"]["ready_here"] is True
        assert unpack(await running.service.create("warm", "t1", "b", {}))["info"]["ready_here"] is True, (
            "one that warms up is waited for"
        )

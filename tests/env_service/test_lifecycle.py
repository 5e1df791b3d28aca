"""Instances from create to release: caps, order, idleness, loss; nothing is leaked whatever goes wrong."""

from __future__ import annotations

import asyncio

import pytest
from local_hosts import Http, Running, eventually, say, serving

from env_service.errors import InstanceExists, InstanceLost, UnknownInstance
from env_service.hosting.wire import unpack

pytestmark = pytest.mark.service


def nothing_is_left(running: Running) -> bool:
    """Whether no instance holds anything: table, places, workers."""
    service = running.service
    workers = [worker for pool in service._pools.values() for worker in pool.workers]
    return not service.instances and not any(service._taken.values()) and not any(worker.slots for worker in workers)


async def test_creates_over_the_cap_are_refused_with_retry_after_and_work_again_after_a_release() -> None:
    async with serving(max_instances=3) as running, Http(running.url) as http:
        replies = await asyncio.gather(
            *(http.post("/create", {"task_id": "t1", "instance_id": f"i{n}"}) for n in range(5))
        )
        refused = [(status, body["code"], headers["Retry-After"]) for status, body, headers in replies if status != 200]
        assert refused == [(503, "full", "1")] * 2
        assert await http.get("/healthz") == (200, "OK")
        (victim, *_) = running.service.instances
        await http.post("/release", {"instance_id": victim})
        assert (await http.post("/create", {"task_id": "t1"}))[0] == 200


@pytest.mark.parametrize("bad", [{"task_id": "x"}, {"task_id": "t1", "params": {"fail": "init"}}])
async def test_a_create_that_fails_leaves_nothing_behind_and_its_id_can_be_used_again(bad: dict[str, object]) -> None:
    async with serving(max_instances=1) as running, Http(running.url) as http:
        for _ in range(3):
            assert (await http.post("/create", {**bad, "instance_id": "a"}))[0] in (400, 500)
        assert nothing_is_left(running)
        assert (await http.post("/create", {"task_id": "t1", "instance_id": "a"}))[0] == 200


async def test_an_id_belongs_to_one_instance_also_under_concurrent_creates() -> None:
    async with serving() as running:
        create = running.service.create
        results = await asyncio.gather(*(create("counter", "t1", "a", {}) for _ in range(20)), return_exceptions=True)
        assert sum(isinstance(result, bytes) for result in results) == 1
        assert sum(isinstance(result, InstanceExists) for result in results) == 19
        await running.service.release("a")
        assert nothing_is_left(running)


async def test_a_create_repeated_with_its_key_finds_the_first_ones_answer_until_the_episode_goes_on() -> None:
    async with serving() as running:
        service = running.service
        first, second = await asyncio.gather(*(service.create("counter", "t1", "a", {}, "key") for _ in range(2)))
        assert first == second == await service.create("counter", "t1", "a", {}, "key")
        with pytest.raises(InstanceExists):
            await service.create("counter", "t1", "a", {}, "other key")
        await service.step("a", say(1), {}, 0)
        with pytest.raises(InstanceExists):
            await service.create("counter", "t1", "a", {}, "key")


async def test_release_during_a_create_and_during_a_step_waits_for_them_and_leaks_nothing() -> None:
    async with serving() as running:
        service = running.service
        creating = asyncio.create_task(service.create("counter", "t1", "a", {}))
        await asyncio.sleep(0)
        assert await service.release("a") is True
        await creating
        await service.create("counter", "t1", "b", {})
        stepping = asyncio.create_task(service.step("b", say("!sleep 0.3"), {}, None))
        await asyncio.sleep(0.05)
        assert await service.release("b") is True
        assert unpack(await stepping)["state"][0]["content"] == "ok"
        with pytest.raises(UnknownInstance):
            await service.step("b", say(1), {}, None)
        assert nothing_is_left(running)


async def test_an_idle_instance_is_released_and_a_long_step_is_not_idle() -> None:
    async with serving(idle_s=0.4) as running:
        service = running.service
        await service.create("counter", "t1", "gone", {})
        await service.create("counter", "t1", "busy", {})
        reply = await service.step("busy", say("!sleep 1.2"), {}, None)
        assert unpack(reply)["state"][0]["content"] == "ok"
        assert list(service.instances) == ["busy"], "idle time counts from the end of the last call"
        await eventually(lambda: nothing_is_left(running))


async def test_a_hanging_call_is_given_up_in_its_time_and_its_neighbours_go_on() -> None:
    async with serving({"quick": "counter_envs:QuickCounter"}, shared_hosts=1) as running, Http(running.url) as http:
        for name in ("hung", "fine"):
            await http.post("/create", {"task_id": "t1", "instance_id": name})
        hanging = asyncio.create_task(http.post("/step", {"instance_id": "hung", "messages": say("!spin")}))
        await asyncio.sleep(0.1)
        assert (await http.post("/step", {"instance_id": "fine", "messages": say(1)}))[0] == 200
        status, body, _ = await hanging
        assert (status, body["code"]) == (504, "timeout")
        status, body, _ = await http.post("/step", {"instance_id": "hung", "messages": say(1)})
        assert (status, body["code"]) == (500, "instance_lost")
        (pool,) = running.service._pools.values()
        await eventually(lambda: pool.workers[0].link.stuck == 0)
        assert (await http.post("/release", {"instance_id": "hung"}))[1]["success"] is True
        assert (await http.post("/step", {"instance_id": "fine", "messages": say(1)}))[1]["data"]["info"]["calls"] == 2


async def test_a_lost_host_takes_its_own_instances_and_nothing_else_and_is_replaced() -> None:
    async with serving(shared_hosts=2) as running:
        service = running.service
        names = [f"i{number}" for number in range(50)]
        await asyncio.gather(*(service.create("counter", "t1", name, {}) for name in names))
        victim = service.instances["i0"].worker
        assert victim is not None
        doomed = {name for name in names if service.instances[name].worker is victim}
        assert len(doomed) == 25
        victim.host.kill()
        await eventually(lambda: service.instances["i0"].lost)
        for name in names:
            if name in doomed:
                with pytest.raises(InstanceLost, match="create another"):
                    await service.step(name, say(1), {}, None)
            else:
                await service.step(name, say(1), {}, None)
        assert service._taken["counter"] == 25, "places of lost instances are free at once"
        (pool,) = service._pools.values()
        await eventually(lambda: len(pool.workers) == 2)
        assert all(await asyncio.gather(*(service.release(name) for name in names)))
        assert nothing_is_left(running)


async def test_hosts_on_other_nodes_dial_over_tcp_and_strangers_are_refused() -> None:
    from local_hosts import LocalLauncher

    async with serving(launcher=LocalLauncher(remote=True)) as running:
        await running.service.create("counter", "t1", "a", {})
        address = running.service._link_server._remote
        assert address is not None and address.port > 0
        for greeting in (b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100, b"\0" * 13):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(greeting)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
        await running.service.step("a", say(1), {}, None)


async def test_stopping_does_not_wait_for_a_step_that_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("env_service.hosting.service.STOP_PATIENCE_S", 0.2)
    async with serving({"lonely": "counter_envs:LonelyCounter"}) as running:
        service = running.service
        await service.create("lonely", "t1", "a", {})
        stepping = asyncio.create_task(service.step("a", say("!sleep 4"), {}, None))
        await asyncio.sleep(0.1)
        await asyncio.wait_for(service.stop(), 2.5)
        with pytest.raises(InstanceLost):
            await stepping

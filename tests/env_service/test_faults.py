"""Everything that can go wrong with environments, processes and clients of a service on Ray; what it holds is counted
before and after."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator

import orjson
import psutil
import pytest
from local_hosts import Http, say
from ray_service import BOTH, Served, command_of, folders_of, leaking_nothing, open_instances, start, stop

from env_service.client import AsyncEnvClient, EnvCrashed, EnvTimeout
from tests.free_ports import free_port

pytestmark = [pytest.mark.service, pytest.mark.chaos]

HARMLESS_ACTS = {
    "!raise": EnvCrashed,
    "!spin": EnvTimeout,
    "!sleep 600": EnvTimeout,
    "!exit": EnvCrashed,
    "!garbage object": EnvCrashed,
    "!garbage nan": EnvCrashed,
    "!garbage shape": EnvCrashed,
    "!object": EnvCrashed,
    "!print 50": dict,
}
"""What an agent may make an environment do without ending its process: raise, hang, return nonsense, print 100 MB."""
DEADLY_ACTS = {"!crash": EnvCrashed, "!die": EnvCrashed, "!deaf": EnvTimeout, "!allocate": EnvCrashed}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One service for all tests."""
    options = ["--warm", "2", "--memory-mb", "256", "--shared-memory-mb", "700"]
    service = start(free_port(), *BOTH, *options)
    service.wait_until_healthy()
    yield service
    stop(service)


@pytest.fixture(autouse=True)
def counted(served: Served) -> Iterator[None]:
    """Fail a test after which the service holds more or less than before."""
    with leaking_nothing(served):
        yield


async def test_the_actor_behind_isolated_processes_killed_in_mid_step_is_replaced(served: Served) -> None:
    async with AsyncEnvClient(served.url) as client:
        await client.create_instance("lonely", "t1", "a")
        actor: psutil.Process | None = next(
            p for p in served.family() if "env_service.hosting.forkserver" in command_of(p)
        )
        while actor is not None and "ray::Host" not in command_of(actor):
            actor = actor.parent()
        assert actor is not None
        stepping = asyncio.create_task(client.step("a", say("!sleep 2"), step_index=0))
        await asyncio.sleep(0.1)
        actor.kill()
        with pytest.raises(EnvCrashed):
            await stepping
        await client.release_instance("a")
        await client.create_instance("lonely", "t1", "b")
        assert (await client.step("b", say(3), step_index=0))["state"][0]["content"] == "3"
        await client.release_instance("b")


@pytest.mark.parametrize("env_type", ["counter", "lonely"])
async def test_environments_that_raise_hang_return_garbage_or_flood_do_not_disturb_their_neighbours(
    served: Served, env_type: str
) -> None:
    acts = HARMLESS_ACTS if env_type == "counter" else {**HARMLESS_ACTS, **DEADLY_ACTS}
    names = [f"n{number}" for number in range(len(acts))]
    async with AsyncEnvClient(served.url) as client:
        await asyncio.gather(*(client.create_instance(env_type, "t1", name) for name in ("calm", *names)))

        async def neighbour() -> None:
            for index in range(40):
                assert (await client.step("calm", say(0), step_index=index))["state"][0]["content"] == "0"
                await asyncio.sleep(0.02)

        calm = asyncio.create_task(neighbour())
        steps = (client.step(name, say(act)) for name, act in zip(names, acts, strict=True))
        results = await asyncio.gather(*steps, return_exceptions=True)
        assert {act: type(result) for act, result in zip(acts, results, strict=True)} == acts
        await calm
        logged = sum(
            path.stat().st_size for folder in folders_of(served) for path in folder.rglob("*") if path.is_file()
        )
        assert logged < 20_000_000, "what environments print must not end up in logs"
        await asyncio.gather(*(client.release_instance(name) for name in ("calm", *names)))


async def test_a_shared_host_survives_a_flood_of_memory_or_is_replaced(served: Served) -> None:
    async with AsyncEnvClient(served.url) as client:
        for name in ("greedy", "calm"):
            await client.create_instance("counter", "t1", name)
        with pytest.raises((EnvCrashed, EnvTimeout)):
            await client.step("greedy", say("!allocate"))
        await asyncio.gather(*(client.release_instance(name) for name in ("greedy", "calm")))
        await asyncio.gather(*(client.create_instance("counter", "t1", f"after{number}") for number in range(10)))
        assert all(await asyncio.gather(*(client.release_instance(f"after{number}") for number in range(10))))
        assert max(p.memory_info().rss for p in served.family()) < 1.2e9


@pytest.mark.parametrize("env_type", ["counter", "lonely"])
async def test_a_client_that_vanishes_in_mid_call_harms_nothing(served: Served, env_type: str) -> None:
    async with Http(served.url) as http:

        async def instance_after(steps: int) -> None:
            """Wait until the only instance is at rest and has taken so many steps."""
            async with asyncio.timeout(20):
                while [(i["instance_id"], i["state"], i["steps"]) for i in await open_instances(http)] != [
                    ("whole", "open", steps)
                ]:
                    await asyncio.sleep(0.05)

        await vanish(served, "/create", {"env_type": env_type, "task_id": "t1", "instance_id": "half"}, sent=0.5)
        await vanish(
            served,
            "/create",
            {"env_type": env_type, "task_id": "t1", "instance_id": "whole", "params": {"init_sleep": 0.4}},
        )
        await instance_after(0)
        for number in range(3):
            await vanish(served, "/step", {"instance_id": "whole", "messages": say("!sleep 0.4"), "step_index": number})
            await vanish(served, "/evaluate", {"instance_id": "whole"})
        await instance_after(3)
        assert (await http.post("/step", {"instance_id": "whole", "messages": say(1), "step_index": 3}))[1]["data"][
            "info"
        ]["calls"] == 4
        await vanish(served, "/release", {"instance_id": "whole"})


async def vanish(served: Served, path: str, body: object, sent: float = 1.0) -> None:
    """Send a request, or a part of it, and break the connection a moment later without waiting for the reply."""
    payload = orjson.dumps(body)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        f"{len(payload)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets the connection
        sock.sendall(head.encode() + payload[: int(len(payload) * sent)])
        await asyncio.sleep(0.1)

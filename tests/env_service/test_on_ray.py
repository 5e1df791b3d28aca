"""The life of a service on Ray: killed and restarted, stopped in order, joined to a cluster; nothing
is left of it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from local_hosts import eventually, say
from ray_service import (
    BOTH,
    CANARY,
    RAYS_OWN_AGENTS,
    ROOT,
    Served,
    all_gone,
    census,
    command_of,
    environment_of,
    folders_of,
    start,
    stop,
)

from env_service.client import AsyncEnvClient, EnvCrashed, RetryPolicy
from tests.free_ports import free_port

pytestmark = pytest.mark.service


class House:
    """A place for one service at a time, on one port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.service: Served | None = None

    def open(self) -> Served:
        """Return the service that runs, or a new one that is healthy."""
        if self.service is None or self.service.process.poll() is not None:
            self.service = start(self.port, *BOTH)
            self.service.wait_until_healthy()
        return self.service


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    """The service of this module: tests may end it."""
    house = House()
    yield house
    if house.service is not None and house.service.process.poll() is None:
        stop(house.service)


@pytest.mark.chaos
async def test_clients_outlive_a_service_that_is_killed_and_started_again(house: House) -> None:
    first = await asyncio.to_thread(house.open)
    async with AsyncEnvClient(first.url, retry=RetryPolicy(tries=200, budget_s=200.0)) as client:
        for name, env_type in (("old0", "counter"), ("old1", "lonely")):
            await client.create_instance(env_type, "t1", name)
        family = first.family()
        first.process.kill()
        first.process.wait()
        creates = [asyncio.create_task(client.create_instance("counter", "t1", f"new{number}")) for number in range(20)]
        await eventually(lambda: all_gone(family, but=RAYS_OWN_AGENTS), 20)
        second = await asyncio.to_thread(house.open)
        assert len(await asyncio.wait_for(asyncio.gather(*creates), 200)) == 20
        for name in ("old0", "old1"):
            with pytest.raises(EnvCrashed, match="create a new one"):
                await client.step(name, say(1), step_index=0)
        assert (await client.step("new0", say(2), step_index=0))["state"][0]["content"] == "2"
        await asyncio.gather(*(client.release_instance(f"new{number}") for number in range(20)))
    assert census(second).instances == 0
    assert not folders_of(first), "the successor sweeps up"


def test_sigterm_stops_everything_and_frees_the_port(house: House) -> None:
    service = house.open()
    with urllib.request.urlopen(
        urllib.request.Request(
            f"{service.url}/create", b'{"env_type": "lonely", "task_id": "t1"}', {"Content-Type": "application/json"}
        )
    ) as reply:
        assert reply.status == 200
    family = service.family()
    assert len(family) > 5 and folders_of(service)
    assert [command_of(p) for p in family if CANARY in environment_of(p).values()] == []
    assert {folder.stat().st_mode & 0o777 for folder in folders_of(service)} == {0o700}, (
        "Ray opens its own folder to everybody"
    )
    log = stop(service)
    assert service.process.returncode == 0, log
    assert all_gone(family), [p for p in family if p.is_running()]
    assert not folders_of(service)
    assert "Traceback" not in log and "SIGTERM received" not in log
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", service.port))


async def test_a_service_joins_a_cluster_spreads_over_its_nodes_and_leaves_nothing_there(tmp_path: Path) -> None:
    port = free_port()
    script = (
        "from ray.cluster_utils import Cluster; import sys, time; c = Cluster(initialize_head=True, "
        "head_node_args={'num_cpus': 1});"
    )
    script += "c.add_node(num_cpus=1); c.wait_for_nodes(); print(c.address, flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "SOME_API_KEY": CANARY}
    cluster = subprocess.Popen(
        [sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True, env=environ, cwd=ROOT
    )
    assert cluster.stdout is not None
    try:
        address = (await asyncio.to_thread(cluster.stdout.readline)).strip()
        service = start(port, *BOTH, "--ray-address", address)
        await asyncio.to_thread(service.wait_until_healthy)
        actors = [p for p in psutil.Process(cluster.pid).children(recursive=True) if "ray::Host" in command_of(p)]
        assert len({p.ppid() for p in actors}) == 2, "hosts run on both nodes"
        for actor in actors:
            assert CANARY in environment_of(actor.parent()).values(), (
                "a cluster of somebody else's hands on what it has"
            )
            assert CANARY not in str(environment_of(actor)) and "PATH" in environment_of(actor)
        async with AsyncEnvClient(service.url) as client:
            for env_type in ("counter", "lonely"):
                names = [f"{env_type}{number}" for number in range(6)]
                await asyncio.gather(*(client.create_instance(env_type, "t1", name) for name in names))
                replies = await asyncio.gather(*(client.step(name, say("!pid"), step_index=0) for name in names))
                pids = {int(reply["state"][0]["content"]) for reply in replies}
                assert len(pids) == (2 if env_type == "counter" else 6)
        children = [child for actor in actors for child in actor.children(recursive=True)]
        assert [command_of(child) for child in children if CANARY in str(environment_of(child))] == []
        await asyncio.to_thread(stop, service)
        await eventually(lambda: all_gone([*actors, *children]), 20)
        assert cluster.poll() is None
    finally:
        assert cluster.stdin is not None
        cluster.stdin.close()
        cluster.stdout.close()
        await asyncio.to_thread(cluster.wait, 60)

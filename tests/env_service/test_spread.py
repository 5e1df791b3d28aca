"""Hosts over nodes that go and come: where the next one is started, and when one moves."""

from __future__ import annotations

import asyncio
import time

import pytest
from local_hosts import COUNTER, LocalLauncher, Running, eventually, say, serving

from env_service.hosting import cluster as cluster_module
from env_service.hosting import shared_pool
from env_service.hosting.cluster import AVOID_S, HostCluster


class Placing(HostCluster):
    """A cluster of nodes that the test names."""

    def __init__(self, *nodes: str) -> None:
        super().__init__("nowhere:1")
        self.nodes_alive = list(nodes)
        self._node = nodes[0]

    def _alive(self) -> list[str]:
        return self.nodes_alive

    def place(self) -> str:
        node = self._emptiest(self._alive())
        self._hosts[node] += 1
        return node


def test_hosts_go_to_the_emptiest_node_but_not_soon_to_one_that_lost_a_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Placing("own", "other")
    assert [cluster.place() for _ in range(4)] == ["own", "other", "own", "other"]
    cluster._ended("other")
    cluster._ended("other")
    assert cluster.place() == "own", "Ray may not know yet that the other node is gone"
    assert not cluster._is_crowded("own")
    now = time.monotonic() + AVOID_S + 1
    monkeypatch.setattr(cluster_module.time, "monotonic", lambda: now)
    assert cluster._is_crowded("own") and cluster.place() == "other"


def nodes_of(running: Running) -> list[str]:
    (pool,) = running.service._pools.values()
    return sorted(worker.host.node for worker in pool.workers)


def another_node_joins(launcher: LocalLauncher) -> None:
    """New hosts are on the other node from now on, until one is there."""
    launcher.remote, launcher.overfull = True, {"here"}


async def the_other_has_one(running: Running) -> None:
    await eventually(lambda: "elsewhere" in nodes_of(running))
    running.launcher.overfull = set()


@pytest.mark.service
async def test_a_shared_host_moves_to_a_node_that_joins_and_ends_after_its_last_instance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_pool, "SPREAD_S", 0.05)
    async with serving(COUNTER, shared_hosts=2) as running:
        service = running.service
        for name in "ab":
            await service.create("counter", "t1", name, {})
        another_node_joins(running.launcher)
        await the_other_has_one(running)
        assert nodes_of(running) == ["elsewhere", "here", "here"], "the one that moves still has an instance"
        for name in "ab":
            assert b'"3"' in await service.step(name, say(3), {}, 0)
        await service.create("counter", "t1", "c", {})
        await asyncio.gather(*(service.release(name) for name in "ab"))
        await eventually(lambda: nodes_of(running) == ["elsewhere", "here"])
        assert b'"3"' in await service.step("c", say(3), {}, 0)

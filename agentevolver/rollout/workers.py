"""Rollout workers of a run: spread over the cluster's nodes, and replaced when they are lost.

A new node gets its share of workers, and surplus workers on other nodes are dismissed when idle.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentevolver.utils.errors import last_line

logger = logging.getLogger(__name__)

# Seconds without new workers on a node where one failed to start.
BARRED_S = 300.0


class NoWorker(RuntimeError):
    """No rollout worker can be started on any node; the message holds the last reason."""


class Cluster(Protocol):
    """The functions of Ray that `RolloutWorkers` needs; `RayCluster` is the real one."""

    def living(self) -> list[str]:
        """Return the ids of living nodes, this process's node first."""

    def results(self, references: Sequence[Any], timeout_s: float | None) -> dict[Any, Exception | None]:
        """Return the finished references with their errors. Without a timeout, wait until one is finished."""

    def kill(self, handle: Any) -> None:
        """End a worker; never raises."""


@dataclass(eq=False)
class Member:
    """One rollout worker. `ready` is a reference that resolves when the worker exists, `alive` when its process ends;
    `given` are its unfinished batches."""

    handle: Any
    node: str
    ready: Any
    alive: Any
    given: list[Any] = field(default_factory=list)


class RolloutWorkers:
    """The workers of a run.

    `start` starts a worker on a node and returns its handle, whose coroutine method `outlive` never returns.
    """

    def __init__(self, size: int, start: Callable[[str], Any], cluster: Cluster) -> None:
        self._size = size
        self._start = start
        self._cluster = cluster
        self.active: list[Member] = []
        self.joining: list[Member] = []
        self.retiring: list[Member] = []
        self._barred: dict[str, float] = {}
        self._problem = "there is no node"

    @property
    def members(self) -> list[Member]:
        return [*self.active, *self.joining, *self.retiring]

    def begin(self) -> None:
        for node, count in shares(self._size, self._cluster.living()).items():
            self.active += [self._new(node) for _ in range(count)]

    def lost(self) -> list[Member]:
        """Remove and return the workers whose process has ended."""
        ended = self._cluster.results([one.alive for one in self.members], 0)
        gone = [one for one in self.members if one.alive in ended]
        for one in gone:
            self._note(one, ended[one.alive])
        for group in (self.active, self.joining, self.retiring):
            group[:] = [one for one in group if one not in gone]
        return gone

    def arrange(self) -> list[Member]:
        """Add ready workers, start missing ones and retire surplus ones. Return the newly active workers.

        At least one worker is active afterwards; raises NoWorker otherwise.
        """
        new = self._welcome(0)
        wanted = shares(self._size, self._cluster.living())
        have = Counter(one.node for one in (*self.active, *self.joining))
        now = time.monotonic()
        for node, count in wanted.items():
            if self._barred.get(node, 0.0) <= now:
                self.joining += [self._new(node) for _ in range(count - have[node])]
        if not self.active and not self.joining:
            raise NoWorker(f"no rollout worker can be started: {self._problem}")
        while not self.active:
            new += self._welcome(None)
            if not self.active and not self.joining:
                raise NoWorker(f"no rollout worker can be started: {self._problem}")
        # Last: a surplus worker is retired only when another has taken its place.
        while len(self.active) > self._size:
            have = Counter(one.node for one in self.active)
            surplus = max(self.active, key=lambda one: have[one.node] - wanted[one.node])
            self.active.remove(surplus)
            self.retiring.append(surplus)
        return [one for one in new if one in self.active]

    def dismiss(self, idle: Callable[[Member], bool]) -> None:
        for one in [one for one in self.retiring if idle(one)]:
            self.retiring.remove(one)
            self._cluster.kill(one.handle)

    def _new(self, node: str) -> Member:
        handle = self._start(node)
        return Member(handle, node, handle.__ray_ready__.remote(), handle.outlive.remote())

    def _welcome(self, timeout_s: float | None) -> list[Member]:
        ended = self._cluster.results([one.ready for one in self.joining], timeout_s)
        done = [one for one in self.joining if one.ready in ended]
        self.joining = [one for one in self.joining if one not in done]
        ready = [one for one in done if ended[one.ready] is None]
        for one in done:
            if (error := ended[one.ready]) is not None:
                self._note(one, error)
        self.active += ready
        return ready

    def _note(self, member: Member, error: Exception | None) -> None:
        made = self._cluster.results([member.ready], 0)
        why = last_line(error) if error is not None else "it ended"
        logger.warning("a rollout worker on node %s is lost: %s", member.node, why)
        if made.get(member.ready) is not None:
            self._problem = why
            self._barred[member.node] = time.monotonic() + BARRED_S


def shares(size: int, nodes: Sequence[str]) -> Counter[str]:
    """Return the number of workers of each node, assigned round-robin from the first."""
    return Counter(nodes[place % len(nodes)] for place in range(size) if nodes)


class RayCluster:
    def living(self) -> list[str]:
        import ray

        own = ray.get_runtime_context().get_node_id()
        return sorted((node["NodeID"] for node in ray.nodes() if node["Alive"]), key=lambda node: (node != own, node))

    def results(self, references: Sequence[Any], timeout_s: float | None) -> dict[Any, Exception | None]:
        import ray
        from ray.exceptions import RayError

        if not references:
            return {}
        number = 1 if timeout_s is None else len(references)
        done, _ = ray.wait(list(references), num_returns=number, timeout=timeout_s, fetch_local=False)
        found: dict[Any, Exception | None] = {}
        for reference in done:
            try:
                ray.get(reference)
                found[reference] = None
            except RayError as error:
                found[reference] = error
        return found

    def kill(self, handle: Any) -> None:
        import ray

        try:
            ray.kill(handle)
        except (ray.exceptions.RayError, ValueError) as error:
            logger.info("a rollout worker was gone before it was dismissed: %s", error)

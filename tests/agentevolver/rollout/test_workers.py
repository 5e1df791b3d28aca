"""Rollout workers over nodes that go and come: who is started, who takes part, who ends."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentevolver.rollout.workers import NoWorker, RolloutWorkers, shares


class Worker:
    """A worker whose making and end the test decides."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.ready, self.alive = object(), object()
        self.__ray_ready__ = SimpleNamespace(remote=lambda: self.ready)
        self.outlive = SimpleNamespace(remote=lambda: self.alive)


class Fake:
    """Nodes, and what has ended on them."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = list(nodes)
        self.workers: list[Worker] = []
        self.ended: dict[Any, Exception | None] = {}
        self.killed: list[Worker] = []
        self.slow = self.broken = False

    def start(self, node: str) -> Worker:
        worker = Worker(node)
        self.workers.append(worker)
        if self.broken:
            self.ended |= dict.fromkeys((worker.ready, worker.alive), RuntimeError("no such folder"))
        elif not self.slow:
            self.ended[worker.ready] = None
        return worker

    def living(self) -> list[str]:
        return self.nodes

    def results(self, references: list[Any], timeout_s: float | None) -> dict[Any, Exception | None]:
        found = {reference: self.ended[reference] for reference in references if reference in self.ended}
        assert found or timeout_s is not None or not references, "this would wait for ever"
        return found

    def kill(self, handle: Worker) -> None:
        self.killed.append(handle)

    def lose(self, node: str) -> None:
        self.nodes.remove(node)
        self.ended |= {one.alive: RuntimeError("its node died") for one in self.workers if one.node == node}


def workers_on(fake: Fake, size: int) -> RolloutWorkers:
    workers = RolloutWorkers(size, fake.start, fake)
    workers.begin()
    workers.arrange()
    return workers


def nodes_of(workers: RolloutWorkers) -> Counter[str]:
    return Counter(member.node for member in workers.active)


@given(st.integers(0, 20), st.lists(st.text(min_size=1), max_size=6, unique=True))
def test_shares_are_even_and_the_first_nodes_have_more(size: int, nodes: list[str]) -> None:
    found = shares(size, nodes)
    assert sum(found.values()) == (size if nodes else 0)
    counts = [found[node] for node in nodes]
    assert counts == sorted(counts, reverse=True)
    assert not counts or max(counts) - min(counts) <= 1


def test_those_of_a_lost_node_are_replaced_on_the_others_with_what_they_were_given() -> None:
    fake = Fake("here", "there")
    workers = workers_on(fake, 4)
    for member in workers.active:
        member.given.append(member.node)
    fake.lose("there")
    lost = workers.lost()
    assert [one.given for one in lost] == [["there"], ["there"]] and workers.lost() == []
    assert nodes_of(workers) == {"here": 2}
    workers.arrange()
    assert len(workers.joining) == 2, "nobody waits for them while others are there"
    assert len(workers.arrange()) == 2 and nodes_of(workers) == {"here": 4} and workers.joining == []


def test_a_node_that_comes_back_gets_its_share_and_the_surplus_ends_when_it_is_idle() -> None:
    fake = Fake("here", "there")
    workers = workers_on(fake, 2)
    fake.lose("there")
    workers.lost()
    workers.arrange()
    workers.arrange()
    assert nodes_of(workers) == {"here": 2}
    fake.nodes.append("again")
    fake.slow = True
    workers.arrange()
    assert nodes_of(workers) == {"here": 2} and [one.node for one in workers.joining] == ["again"], "until it is ready"
    fake.ended[fake.workers[-1].ready] = None
    (new,) = workers.arrange()
    assert new.node == "again" and nodes_of(workers) == {"here": 1, "again": 1}
    (retiring,) = workers.retiring
    workers.dismiss(lambda one: False)
    assert fake.killed == []
    workers.dismiss(lambda one: True)
    assert fake.killed == [retiring.handle] and workers.retiring == []
    assert workers.arrange() == [] and nodes_of(workers) == {"here": 1, "again": 1}


def test_where_none_can_be_made_the_reason_is_said() -> None:
    fake = Fake("here")
    fake.broken = True
    workers = RolloutWorkers(1, fake.start, fake)
    workers.begin()
    assert len(workers.lost()) == 1
    with pytest.raises(NoWorker, match="no rollout worker can be started: no such folder"):
        workers.arrange()

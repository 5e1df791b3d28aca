"""Groups of a worker that is lost: begun anew by others, from the start, a bounded number of times."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from agentevolver.rollout.workers import Member
from agentevolver.trainer.verl_plugin import agent_loop_manager as module
from agentevolver.trainer.verl_plugin.agent_loop_manager import GIVEN_UP, WorkerManager


class Queue:
    """TransferQueue's keys, by partition."""

    def __init__(self, **tags: dict[str, dict[str, Any]]) -> None:
        self.tags = tags
        self.cleared: dict[str, list[str]] = {"train": [], "val": []}

    def kv_list(self, partition_id: str) -> dict[str, Any]:
        return {partition_id: self.tags[partition_id]}

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        self.cleared[partition_id] += keys


def prompts(*names: str, validate: bool = False) -> TensorDict:
    batch = tu.get_tensordict({"uid": list(names), "index": list(range(len(names)))})
    tu.assign_non_tensor_data(batch, "global_steps", 3)
    if validate:
        tu.assign_non_tensor_data(batch, "validate", True)
    return batch


def group(status: str) -> dict[str, Any]:
    return {"is_prompt": True, "status": status}


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    training = {"a-0": group("running"), "b-1": group("finished"), "c-2": group("pending")}
    validation = {"a-0": group("finished"), "b-1": group("running")}
    made = Queue(
        train=training | {"a-0_0_0": {}, "a-0_1_0": {}, "b-1_0_0": {}},
        val=validation | {"a-0_0_0": {}, "b-1_2_0": {}},
    )
    monkeypatch.setattr(module, "tq", made)
    return made


class Workers:
    """Workers that note what they are given; `lose` takes one away."""

    def __init__(self, size: int) -> None:
        self.active = [Member(self._worker(place), f"node{place}", None, None) for place in range(size)]
        self.retiring: list[Member] = []
        self.gone: list[Member] = []
        self.given: list[tuple[int, list[str], str | None]] = []
        self.validates: list[bool] = []

    def _worker(self, place: int) -> Any:
        def generate_sequences(batch: TensorDict) -> None:
            self.given.append((place, list(batch["uid"]), tu.get_non_tensor_data(batch, GIVEN_UP, None)))
            self.validates.append(tu.get_non_tensor_data(batch, "validate", False))

        return SimpleNamespace(generate_sequences=SimpleNamespace(remote=generate_sequences))

    @property
    def members(self) -> list[Member]:
        return self.active

    def lose(self, place: int) -> None:
        self.gone.append(self.active.pop(place))

    def lost(self) -> list[Member]:
        gone, self.gone = self.gone, []
        return gone

    def arrange(self) -> list[Member]:
        return []

    def dismiss(self, idle: Any) -> None:
        pass


@pytest.fixture
def managed(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Workers]:
    monkeypatch.setattr(ray, "get", lambda reference: reference)
    manager: Any = object.__new__(WorkerManager)
    manager._workers = workers = Workers(2)
    manager._max_tries, manager._pause, manager._losses = 2, {}, module.Counter()
    manager._looked_at, manager._lost, manager._begun_again = 0.0, 0, 0
    return manager, workers


def test_a_lost_workers_validation_begins_anew_as_validation_beside_its_training(managed: Any, queue: Queue) -> None:
    manager, workers = managed
    manager.generate_sequences(prompts("a-0"))
    manager.generate_sequences(prompts("a-0", validate=True))
    manager.generate_sequences(prompts("b-1", validate=True))
    workers.lose(0)
    manager.look_after(0.0)
    assert workers.given[3:] == [(1, ["a-0"], None), (1, ["b-1"], None)] and workers.validates[3:] == [False, True]
    assert queue.cleared == {"train": ["a-0_0_0", "a-0_1_0"], "val": ["b-1_2_0"]}
    assert manager.metrics() == {"rollout/lost_workers": 1.0, "rollout/groups_begun_again": 2.0}
    assert manager.metrics() == {}


def test_a_group_that_takes_every_worker_along_is_given_up(managed: Any) -> None:
    manager, workers = managed
    manager.generate_sequences(prompts("a-0", "b-1"))
    workers.lose(0)
    manager.look_after(0.0)
    workers.active.append(Member(workers._worker(5), "node5", None, None))
    workers.lose(0)
    manager.look_after(0.0)
    assert workers.given[-1] == (5, ["a-0"], "its rollout worker was lost, 2 times")

"""Prompts that are named, and rows that are ordered, by what they are and not by when they came
(`agentevolver.rollout.groups`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

from agentevolver.rollout import groups

Sample = Callable[..., tuple[KVBatchMeta, dict[str, Any]]]


class Places:
    """Names the groups of a training step, whose prompts may be fetched in several goes."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._step = -1
        self._named = 0

    def name(self, prompts: TensorDict, step: int) -> None:
        """Give each of a step's next prompts its group's name, in the place of the one that verl drew."""
        if step != self._step:
            self._step, self._named = step, 0
        tasks = [task["task_id"] for task in prompts["task"]]
        names = [groups.name(self._seed, "train", step, self._named + i, task) for i, task in enumerate(tasks)]
        self._named += len(names)
        tu.assign_non_tensor_stack(prompts, "uid", names)


def ordered(sample: Sample) -> Sample:
    """Return a replay buffer's `sample` with the rows in order."""

    def inner(*arguments: Any, **options: Any) -> tuple[KVBatchMeta, dict[str, Any]]:
        batch, metrics = sample(*arguments, **options)
        batch.reorder(groups.order(batch.keys))
        return batch, metrics

    return inner


def validation_order(trajectories: Sequence[dict[str, Any]]) -> list[int]:
    """Return the places of a validation's rollouts in the order of their names."""
    return sorted(range(len(trajectories)), key=lambda i: (trajectories[i]["group_id"], trajectories[i]["rollout_id"]))

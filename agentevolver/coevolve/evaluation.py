"""Evaluation of a model: success by split and level, with its standard error."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentevolver.coevolve.types import Play
from agentevolver.types import Task


@dataclass(frozen=True, slots=True)
class Share:
    """A mean over tasks in 0..1, its standard error (0 for one task), and how many tasks there are."""

    mean: float
    error: float
    tasks: int

    def to_dict(self) -> dict[str, float | int]:
        """Return it as JSON-ready data."""
        return {"mean": self.mean, "se": self.error, "tasks": self.tasks}


def level_of(task_id: str) -> int | None:
    """Return the level of a task whose id says it (`left.5.00012`: the kind, the level, the number);
    None for other ids."""
    parts = task_id.split(".")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal() else None


def split_of(task: Task, world: str) -> str:
    """Return the name of a task's split: its own in the world that tasks are proposed for, elsewhere with the
    environment before it."""
    return str(task.split) if task.env_type == world else f"{task.env_type}/{task.split}"


def key_of(task: Task, world: str) -> str:
    """Return what a task is called in `evaluation.jsonl`."""
    return f"{split_of(task, world)}/{task.task_id}"


def record_of(task: Task, plays: Sequence[Play], world: str) -> dict[str, Any]:
    """Return the record of a task in `evaluation.jsonl`."""
    return {
        "key": key_of(task, world),
        "task_id": task.task_id,
        "split": split_of(task, world),
        "level": level_of(task.task_id),
        "n": len(plays),
        "successes": sum(play.success for play in plays),
        "score": sum(play.score for play in plays) / len(plays),
        "calls": sum(play.calls for play in plays) / len(plays),
        "steps": sum(play.steps for play in plays) / len(plays),
        "answered": sum(play.answer is not None for play in plays),
    }


def share_of(means: Sequence[float]) -> Share:
    """Return the mean of tasks' shares of success; the error is that of drawing the tasks, episodes included."""
    mean = sum(means) / len(means)
    if len(means) < 2:
        return Share(mean, 0.0, len(means))
    variance = sum((value - mean) ** 2 for value in means) / (len(means) - 1)
    return Share(mean, math.sqrt(variance / len(means)), len(means))


def summarised(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return, by split, the share of success over all tasks, that of each level,
    and the mean of tool calls and steps."""
    splits: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        splits[str(record["split"])].append(record)
    found: dict[str, Any] = {}
    for split, own in sorted(splits.items()):
        levels: dict[int, list[float]] = defaultdict(list)
        for record in own:
            if record["level"] is not None:
                levels[int(record["level"])].append(record["successes"] / record["n"])
        found[split] = {
            "success": share_of([record["successes"] / record["n"] for record in own]).to_dict(),
            "levels": {str(level): share_of(means).to_dict() for level, means in sorted(levels.items())},
            "calls": sum(record["calls"] for record in own) / len(own),
            "steps": sum(record["steps"] for record in own) / len(own),
        }
    return found

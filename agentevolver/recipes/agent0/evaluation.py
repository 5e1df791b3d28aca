"""Evaluation of a model: success by split and level, with its standard error."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentevolver.recipes.agent0.types import Play
from agentevolver.types import Task


def level_of(task_id: str) -> int | None:
    """Return the level in a task's id (`left.5.00012`: kind, level, number), or None."""
    parts = task_id.split(".")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal() else None


def key_of(task: Task) -> str:
    return f"{task.split}/{task.task_id}"


def record_of(task: Task, plays: Sequence[Play]) -> dict[str, Any]:
    return {
        "key": key_of(task),
        "task_id": task.task_id,
        "split": str(task.split),
        "level": level_of(task.task_id),
        "n": len(plays),
        "successes": sum(play.success for play in plays),
        "score": sum(play.score for play in plays) / len(plays),
        "calls": sum(play.calls for play in plays) / len(plays),
        "steps": sum(play.steps for play in plays) / len(plays),
        "answered": sum(play.answer is not None for play in plays),
    }


def share_of(means: Sequence[float]) -> dict[str, float | int]:
    """Return the mean over tasks and its standard error (0 for one task)."""
    n = len(means)
    mean = sum(means) / n
    variance = sum((value - mean) ** 2 for value in means) / (n - 1) if n > 1 else 0.0
    return {"mean": mean, "se": math.sqrt(variance / n), "tasks": n}


def summarised(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
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
            "success": share_of([record["successes"] / record["n"] for record in own]),
            "levels": {str(level): share_of(means) for level, means in sorted(levels.items())},
            "calls": sum(record["calls"] for record in own) / len(own),
            "steps": sum(record["steps"] for record in own) / len(own),
        }
    return found

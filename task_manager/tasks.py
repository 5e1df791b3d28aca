"""Task files in JSONL: an environment's own tasks, and synthetic ones.

A run trains on its file, not on what the environment lists now, so a resumed run sees the same tasks. Synthetic tasks
are written in AgentEvolver's format (`{"task", "confidence", "reward"}`), and its files can be read.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from agentevolver.types import Task
from agentevolver.utils.files import write_jsonl
from env_service.protocol import Instances


async def environment_tasks(
    client: Instances,
    env_type: str,
    split: str,
    *,
    validation: bool = False,
    params: dict[str, Any] | None = None,
    evaluator: str = "env",
) -> list[Task]:
    """Return the tasks of a split, graded by `evaluator`. Raises ValueError if it is empty or lists a task twice."""
    ids = await client.get_env_profile(env_type, split, params)
    if not ids:
        raise ValueError(f"the environment {env_type!r} lists no task in its split {split!r}")
    if len(set(ids)) != len(ids):
        raise ValueError(f"the environment {env_type!r} lists a task of its split {split!r} twice")
    metadata = {"split": split, "validation": validation}
    return [
        Task(task_id=str(task_id), env_type=env_type, evaluator=evaluator, metadata=dict(metadata)) for task_id in ids
    ]


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    write_jsonl(path, (task.to_dict() for task in tasks))


def read_tasks(path: Path) -> list[Task]:
    """Read a task file; raises ValueError with file and line."""
    tasks = []
    for number, line in _lines(path):
        try:
            tasks.append(Task.from_dict(orjson.loads(line)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}:{number}: not a task: {error}") from error
    return tasks


def write_objectives(path: Path, tasks: Iterable[Task]) -> None:
    records = (
        {"task": task.to_dict(), "confidence": task.metadata.get("confidence"), "reward": None} for task in tasks
    )
    write_jsonl(path, records)


def read_objectives(path: Path) -> list[Task]:
    """Read synthetic tasks: ours, AgentEvolver's, or a plain task file. Raises ValueError with file and line."""
    tasks: list[Task] = []
    seen: dict[str, int] = {}
    for number, line in _lines(path):
        try:
            task = _objective(orjson.loads(line))
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}:{number}: not a synthetic task: {error}") from error
        # AgentEvolver's tasks have their seed's id; ids must be unique here.
        if "seed_task_id" not in task.metadata:
            count = seen[task.task_id] = seen.get(task.task_id, -1) + 1
            task = replace(
                task, task_id=f"{task.task_id}#{count}", metadata={**task.metadata, "seed_task_id": task.task_id}
            )
        tasks.append(task)
    ids = Counter(task.task_id for task in tasks)
    if ids and ids.most_common(1)[0][1] > 1:
        raise ValueError(
            f"{path}: the id {ids.most_common(1)[0][0]} occurs twice: ids of synthetic tasks must be unique"
        )
    return tasks


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    # Not `splitlines`, which also breaks at separators within a task's text.
    with path.open("rb") as file:
        yield from enumerate(file, 1)


def _objective(data: dict[str, Any]) -> Task:
    fields = dict(data.get("task", data))
    fields.setdefault("open_query", True)
    # Older files of AgentEvolver have `ground_truth` beside the task.
    if fields.get("ground_truth") is None:
        fields["ground_truth"] = data.get("ground_truth")
    fields["metadata"] = {"synthetic": True, "confidence": data.get("confidence"), **(fields.get("metadata") or {})}
    task = Task.from_dict(fields)
    if not task.query or not task.ground_truth:
        raise ValueError("query or ground_truth is missing")
    return task


def family_of(task_id: str, metadata: Mapping[str, Any]) -> str:
    """Return a task's family: what its environment says, else the id up to its first dot."""
    return str(metadata.get("family") or metadata.get("generator") or task_id.partition(".")[0])


def stratified(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    """Draw `count` tasks of one environment, in the list's order; each family has its share, rounded up or down.

    The order of the list does not matter: it often has families or levels one after another, or in turn.
    """
    families: dict[str, list[str]] = defaultdict(list)
    for task in tasks:
        families[family_of(task.task_id, task.metadata)].append(task.task_id)
    rng = random.Random(seed)
    names = rng.sample(sorted(families), len(families))
    wanted = {name: min(count / len(tasks), 1.0) * len(families[name]) for name in names}
    kept = {name: math.floor(share + 1e-9) for name, share in wanted.items()}
    # The largest remainders get what is left; `sorted` keeps the drawn order of equal ones.
    for name in sorted(names, key=lambda name: round(kept[name] - wanted[name], 9)):
        kept[name] += sum(kept.values()) < min(count, len(tasks))
    drawn = {task_id for name in names for task_id in rng.sample(sorted(families[name]), kept[name])}
    return [task for task in tasks if task.task_id in drawn]


def seed_of(task: Task) -> str:
    """Return the task id that the environment knows: a synthetic task `<seed>#<k>` runs in its seed's world."""
    return str(task.metadata.get("seed_task_id", task.task_id))


def env_params_of(task: Task) -> dict[str, Any]:
    """Return a task's environment parameters, which override the configuration's."""
    return dict(task.metadata.get("env_params", {}))


def solution_of(task: Task) -> list[str]:
    """Return a task's reference solution, one assistant message each; empty if it has none."""
    # Tasks from elsewhere have their `ground_truth` as one text.
    actions = task.metadata.get("solution")
    if actions is not None:
        return [str(action) for action in actions]
    return [task.ground_truth] if task.ground_truth else []

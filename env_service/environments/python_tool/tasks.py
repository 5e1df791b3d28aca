"""The task files: generated problems that ship with the environment, and files that the operator names.

A line is `{"id", "question", "answer", "checker"}` with optional `split`, `tolerance`, `family` and `level`. A wrong
line raises TaskFileError naming file and line.
"""

from __future__ import annotations

import json
from dataclasses import fields
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

from env_service.environments.python_tool.checkers import PythonTask, check_reference
from env_service.environments.python_tool.settings import GRADER_PACKAGES, is_installed

SPLITS = ("train", "dev", "test")
CHECKERS = ("numeric", "math-verify", "exact")
_SHIPPED = Path(__file__).with_name("tasks")


class PythonTaskFileError(RuntimeError):
    """A task file on the server is wrong."""


def _checked(record: Any, default_split: str) -> PythonTask:
    if not isinstance(record, dict):
        raise ValueError("it must be a JSON object")
    known = {field.name for field in fields(PythonTask)}
    if unknown := set(record) - known:
        raise ValueError(f"unknown key {sorted(unknown)[0]!r}; known: {', '.join(sorted(known))}")
    if missing := [
        key
        for key in ("id", "question", "answer", "checker")
        if not isinstance(record.get(key), str) or not record[key]
    ]:
        raise ValueError(f"`{missing[0]}` must be a text that is not empty")
    task = PythonTask(**{"split": default_split, **record})
    if task.checker not in CHECKERS:
        raise ValueError(f"checker {task.checker!r} is not one of {', '.join(CHECKERS)}")
    if task.split not in SPLITS:
        raise ValueError(f"split {task.split!r} is not one of {', '.join(SPLITS)}")
    if task.tolerance is not None and (
        not isinstance(task.tolerance, int | float) or not 0 <= task.tolerance < inf or task.checker != "numeric"
    ):
        raise ValueError("`tolerance` must be a number of at least 0 and belongs to the numeric checker")
    if task.checker == "math-verify":
        demand_grader()
    check_reference(task)
    return task


def demand_grader() -> None:
    missing = [name for name in GRADER_PACKAGES if not is_installed(name)]
    if missing:
        raise ValueError(f"checker 'math-verify' needs {missing[0]!r}; install math-verify[antlr4_9_3]")


def _read(path: Path) -> list[PythonTask]:
    default_split = path.stem if path.stem in SPLITS else "train"
    tasks = []
    # Bytes: `str.splitlines` also breaks at characters that JSON allows in texts, such as U+2028.
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            tasks.append(_checked(json.loads(line), default_split))
        except (ValueError, TypeError, RecursionError) as error:
            raise PythonTaskFileError(f"{path}, line {number}: {error}") from error
    return tasks


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise PythonTaskFileError(
            f"cannot read the task file {path}: {error.strerror}; see ENV_PYTHON_TASKS"
        ) from error
    return status.st_mtime_ns, status.st_size


def load_tasks(extra_files: tuple[str, ...] = ()) -> dict[str, PythonTask]:
    paths = (*(_SHIPPED / f"{split}.jsonl" for split in SPLITS), *map(Path, extra_files))
    return _loaded(paths, tuple(_stamp(path) for path in paths))


@lru_cache(maxsize=4)
def _loaded(paths: tuple[Path, ...], stamps: tuple[tuple[int, int], ...]) -> dict[str, PythonTask]:
    tasks: dict[str, PythonTask] = {}
    for path in paths:
        for task in _read(path):
            if task.id in tasks:
                raise PythonTaskFileError(f"{path}: task id {task.id!r} occurs twice")
            tasks[task.id] = task
    return tasks

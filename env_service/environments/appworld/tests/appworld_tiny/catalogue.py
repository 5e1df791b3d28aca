"""All tasks of the tiny world, by split."""

from __future__ import annotations

from . import tasks_home, tasks_people
from .task import TinyTask

TASKS: dict[str, TinyTask] = {task.id: task for task in [*tasks_home.TASKS, *tasks_people.TASKS]}
SPLITS = ("train", "dev", "test_normal", "test_challenge")


def split_ids(split: str) -> list[str]:
    """The task ids of a split, in the order of its file."""
    return [task.id for task in TASKS.values() if task.split == split]

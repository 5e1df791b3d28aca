"""Grades the saved state of an episode with AppWorld's own evaluator, in a process that has run no agent code.

`grade` reads what `episode` left on disk; `baseline` grades a world in which nothing was done but to call the task
completed, which is worth as much as an agent gets for nothing. Both return the checks by requirement.
"""

from __future__ import annotations

import os
from typing import Any

from .layout import EXPERIMENT, data_folder, episode_root, grading_root


def grade(task_id: str, directory: str) -> dict[str, Any]:
    """Grade the last saved state of the episode in `directory`."""
    return _evaluate(task_id, directory, str(episode_root(directory) / "experiments"))


def baseline(task_id: str, directory: str) -> dict[str, Any]:
    """Grade the task's world when the task is called completed at once, without an answer and without anything done."""
    from appworld import AppWorld  # type: ignore[import-not-found]

    outputs = f"{directory}/outputs"
    os.makedirs(outputs)
    _enter(directory, outputs)
    world = AppWorld(task_id, experiment_name=EXPERIMENT, load_ground_truth=False)
    world.execute("apis.supervisor.complete_task()")
    world.close()
    return _evaluate(task_id, directory, outputs)


def _enter(directory: str, experiments: str) -> None:
    root = grading_root(directory)
    if not root.exists():
        root.mkdir()
        (root / "data").symlink_to(data_folder())
        (root / "experiments").symlink_to(experiments)
    os.environ.update(APPWORLD_ROOT=str(root), HOME=directory, IPYTHONDIR=f"{directory}/ipython")
    os.chdir(root)


def _evaluate(task_id: str, directory: str, experiments: str) -> dict[str, Any]:
    from appworld import evaluate_task

    _enter(directory, experiments)
    tracker = evaluate_task(task_id, EXPERIMENT, suppress_errors=True, save_report=False)
    return {
        "success": bool(tracker.success),
        "difficulty": tracker.difficulty,
        "num_checks": int(tracker.num_tests),
        "passes": [str(check["requirement"]) for check in tracker.passes],
        "failures": [str(check["requirement"]) for check in tracker.failures],
        "labels": {str(check["requirement"]): check["label"] for check in [*tracker.passes, *tracker.failures]},
    }

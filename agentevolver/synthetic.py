"""The synthetic tasks of a training run as they stand on disk: the first file, later rounds, and how they were made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from agentevolver.config.schema import Settings
from agentevolver.errors import ConfigError
from agentevolver.types import Task
from task_manager.background import round_files
from task_manager.graders.state import CHECK_KEY
from task_manager.pipeline import evaluator_for
from task_manager.settings import TaskManagerSettings
from task_manager.tasks import read_objectives


def record_path(settings: Settings) -> Path:
    """Return where the experiment keeps how its tasks were made."""
    return settings.experiment_dir / "tasks" / "questioning.json"


def funnel_metrics(settings: Settings) -> dict[str, float]:
    """Return how the run's tasks were made (`questioning/...`), nothing where it made none."""
    path = record_path(settings)
    return dict(json.loads(path.read_text(encoding="utf-8"))["metrics"]) if path.exists() else {}


def synthetic_tasks(section: TaskManagerSettings) -> tuple[list[Task], list[Task]]:
    """Return the synthetic tasks of the first file, and those of later rounds, each with the grader that the
    configuration wants.

    Raises ConfigError for a file that cannot be read.
    """
    path = section.train_data_path
    try:
        first = read_objectives(path) if path.exists() else []
        later = [task for file in round_files(path) for task in read_objectives(file)]
    except (OSError, ValueError) as error:
        raise ConfigError(f"task_manager.train_data_path: {error}") from error
    return [graded_by(section, task) for task in first], [graded_by(section, task) for task in later]


def graded_by(section: TaskManagerSettings, task: Task) -> Task:
    """Return a synthetic task with the grader that the configuration names, whoever made the task."""
    check = task.metadata.get(CHECK_KEY)
    evaluator = evaluator_for(section.grader, check)
    if evaluator in ("state", "state-llm") and check is None:
        raise ConfigError(
            f"task_manager.grader.synthetic_grader = {evaluator}, but the task {task.task_id!r} has no state check: "
            "write auto, or a judge's name"
        )
    return replace(task, evaluator=evaluator, open_query=True)

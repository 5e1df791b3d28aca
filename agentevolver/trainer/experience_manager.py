"""The experience pool before a training run: its file is looked at, and the tasks that will fill it are chosen.

Which tasks are rolled out for the warm start and by the scouts stands in `tasks/warm_start.jsonl` and
`tasks/scout.jsonl` of the run, so that a run that goes on keeps to them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

from agentevolver.config.schema import Settings
from agentevolver.errors import ConfigError, TrainingFailed
from agentevolver.types import Task
from env_service.client import AsyncEnvClient, EnvRequestError
from experience_manager.errors import ExperienceError
from task_manager.tasks import environment_tasks, write_tasks

# Draws of tasks are the same in every start.
SEED = 0


def warm_start_path(settings: Settings) -> Path:
    """Return where the tasks of the warm start stand."""
    return settings.experiment_dir / "tasks" / "warm_start.jsonl"


def scout_path(settings: Settings) -> Path:
    """Return where the scouts' tasks stand."""
    return settings.experiment_dir / "tasks" / "scout.jsonl"


def prepare(settings: Settings, tasks: Sequence[Task]) -> None:
    """Look at the pool and choose the tasks that will fill it.

    Args:
        settings: the run's.
        tasks: all that it trains on or validates on.

    Raises:
        ConfigError: the scouts' split cannot be listed, or holds nothing that is not validated on.
        TrainingFailed: the pool's file cannot be used.
        EnvServiceError: the service fails.
    """
    section = settings.exp_manager
    if section.backend == "embedded":
        try:
            asyncio.run(_look_at_pool(settings))
        except ExperienceError as error:
            raise TrainingFailed(f"the experience pool cannot be used: {error}") from error
    trained = [task for task in tasks if not task.is_validation]
    if section.init_exp_before_training and not warm_start_path(settings).exists():
        write_tasks(warm_start_path(settings), _drawn(trained, section.init_tasks))
    if section.scout.split is not None and not scout_path(settings).exists():
        known = {task.task_id for task in tasks}
        listed = asyncio.run(_list_split(settings, section.scout.split))
        unseen = [task for task in listed if task.task_id not in known]
        if not unseen:
            raise ConfigError(
                f"exp_manager.scout.split = {section.scout.split}: all of its {len(listed)} tasks are trained on or "
                "validated on; let "
                "exp_manager.scout.filter list more"
            )
        write_tasks(scout_path(settings), _drawn(unseen, section.scout.tasks))


def _drawn(tasks: Sequence[Task], count: int | None) -> list[Task]:
    """Return so many of the tasks, drawn at random, marked as scouts."""
    chosen = tasks if count is None or count >= len(tasks) else random.Random(SEED).sample(list(tasks), count)
    return [task.scouting() for task in chosen]


async def _look_at_pool(settings: Settings) -> None:
    # Not above: the trainer reads this module too, and has no use for an index.
    from experience_manager.backend import EmbeddedBackend

    backend = EmbeddedBackend.open(settings.exp_manager, settings.experiment_dir)
    await backend.aclose()


async def _list_split(settings: Settings, split: str) -> list[Task]:
    service = settings.env_service
    async with AsyncEnvClient(service.env_url, timeout_s=service.timeout_s) as client:
        try:
            return await environment_tasks(client, service.env_type, split, params=settings.exp_manager.scout.filter)
        except (ValueError, EnvRequestError) as error:
            raise ConfigError(f"exp_manager.scout.split = {split} cannot be listed: {error}") from error

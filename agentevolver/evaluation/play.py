"""Episodes of an evaluation: n for each task, in parallel, each graded by its environment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentevolver.config.schema import Settings
from agentevolver.rollout.rollout import RolloutRunner
from agentevolver.trainer.monitor.measured import Measured
from agentevolver.types import Task, Trajectory
from agentevolver.utils import seeds
from agentevolver.utils.errors import LaunchError, UsageError
from env_service.client import EnvRequestError, EnvServiceError
from task_manager.tasks import environment_tasks


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """Result of an episode. `error` is the reason if there is no score."""

    task_id: str
    number: int
    score: float | None
    success: bool
    steps: int
    stop_reason: str
    error: str = ""
    measured: Measured = field(default_factory=Measured)


async def list_tasks(world: Any, settings: Settings, env_type: str, split: str) -> list[Task]:
    """Return the tasks of a split.

    Raises:
        UsageError: the split does not exist or is empty.
        LaunchError: the environment cannot list its tasks.
    """
    own = settings.environment(env_type)
    try:
        return await environment_tasks(world, env_type, split, validation=True, params=dict(own.val_filter))
    except (ValueError, EnvRequestError) as error:
        raise UsageError(f"--split {split}: {error}") from error
    except EnvServiceError as error:
        raise LaunchError(f"{env_type}: its tasks cannot be listed: {error}") from error


async def play(
    runner: RolloutRunner, tasks: Sequence[Task], n: int, settings: Settings, sampling: Mapping[str, Any], *, seed: int,
    at_once: int, told: Callable[[PlayedEpisode], None], kept: Callable[[Trajectory], None] = lambda trajectory: None,
) -> list[PlayedEpisode]:  # fmt: skip
    """Play n episodes of each task. Return them in the order of the tasks.

    Args:
        sampling: sampling parameters of each call.
        seed: seeds every draw, together with the task and the episode's number.
        at_once: maximum number of episodes in flight.
        told: called with each finished episode.
    """
    slots = asyncio.Semaphore(at_once)

    async def one(task: Task, number: int) -> PlayedEpisode:
        params = settings.environment(task.env_type).params(validation=True)
        async with slots:
            # A seed for each episode, so the order in which episodes finish does not change the draws.
            with seeds.drawing(seed, "eval", task.task_id, number):
                rollout = await runner.run(task, task.task_id, number, dict(sampling), params)
        kept(rollout.trajectory)
        episode = _read(rollout.trajectory, number)
        told(episode)
        return episode

    async with asyncio.TaskGroup() as group:
        # A task group: the first error that is no failed rollout cancels the other episodes.
        playing = [group.create_task(one(task, number)) for task in tasks for number in range(n)]
    return [task.result() for task in playing]


def _read(trajectory: Trajectory, number: int) -> PlayedEpisode:
    outcome = trajectory.outcome
    return PlayedEpisode(
        trajectory.task.task_id,
        number,
        None if outcome is None else outcome.score,
        outcome is not None and outcome.success,
        len(trajectory.steps),
        trajectory.stop_reason.value,
        trajectory.error if outcome is None else "",
        Measured.of([trajectory]),
    )

"""Carries the reference solutions of a task file out again, each in a fresh instance, and says which still hold.

A solution holds if nothing is refused, the episode ends as it should, and the task's machine check passes where it has
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentevolver.errors import ConfigError
from agentevolver.types import Task
from env_service.client import AsyncEnvClient
from task_manager.actions import PlainFormat
from task_manager.configuration import Configuration
from task_manager.graders.state import CHECK_KEY, check_of
from task_manager.report import print_recheck, progress_bar
from task_manager.tasks import read_objectives, seed_of, solution_of, write_objectives
from task_manager.verify import flaw_of
from task_manager.workshop import configured_format
from task_manager.world import World, WorldClient, execute

Tell = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """A task, and what is wrong with its reference; None if it holds."""

    task: Task
    flaw: str | None


async def recheck(configuration: Configuration, path: Path | None, out: Path | None) -> int:
    """Recheck a file (the configuration's if none is given); returns the exit status: 1 if a task does not hold."""
    path = path or configuration.task_manager.train_data_path
    try:
        tasks = read_objectives(path)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    service = configuration.env_service
    async with AsyncEnvClient(service.env_url, timeout_s=service.timeout_s) as client:
        with progress_bar("checking") as tell:
            settings = configuration.task_manager
            findings = await recheck_tasks(
                client, tasks, service.env_params, settings.num_verify_threads, tell, settings.action_format
            )
    if out is not None:
        write_objectives(out, [finding.task for finding in findings if finding.flaw is None])
    print_recheck([(finding.task, finding.flaw) for finding in findings])
    return 0 if all(finding.flaw is None for finding in findings) else 1


async def recheck_tasks(
    client: WorldClient,
    tasks: Sequence[Task],
    env_params: Mapping[str, Any],
    at_once: int,
    tell: Tell | None = None,
    action_format: str | None = None,
) -> list[Finding]:
    """Return the findings of tasks, in their order; raises what the client raises, and ConfigError for an action format
    that is none."""
    slots = asyncio.Semaphore(at_once)
    done = 0

    async def check(task: Task) -> Finding:
        nonlocal done
        async with slots:
            finding = Finding(
                task, await _flaw(client, task, env_params, configured_format(task.env_type, action_format))
            )
        done += 1
        if tell is not None:
            tell(done, len(tasks), done)
        return finding

    return list(await asyncio.gather(*(check(task) for task in tasks)))


async def _flaw(client: WorldClient, task: Task, env_params: Mapping[str, Any], fmt: PlainFormat) -> str | None:
    if not fmt.executable:
        return f"the action format of the environment {task.env_type!r} says that its actions must not be repeated"
    actions = solution_of(task)
    if not actions:
        return "it has no reference solution"
    execution = await execute(client, World(task.env_type, seed_of(task), dict(env_params)), fmt, actions)
    if not execution.told and execution.after is None:
        return f"the environment {task.env_type!r} does not say what an action did"
    if (flaw := flaw_of(execution, fmt)) is not None:
        return flaw
    if task.metadata.get(CHECK_KEY) is None or execution.after is None:
        return None
    missed = [name for name, holds in check_of(task).judge(execution.after) if not holds]
    return f"does not hold: {'; '.join(missed)}" if missed else None

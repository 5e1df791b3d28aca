"""Runs a whole synthesis over a service of its own, with a mind in the place of the language model."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentevolver.types import Task
from env_service.client import AsyncEnvClient
from env_service.registry import resolve
from task_manager.report import Funnel
from task_manager.settings import QuestioningConfiguration
from task_manager.synthetic import open_run
from task_manager.verify import recheck_tasks

sys.path.append(str(Path(__file__).parents[1] / "env_service"))

Check = Callable[[str, list[Task]], Awaitable[Any]]


async def kept_tasks(
    env_type: str,
    mind: Any,
    folder: Path,
    *,
    seeds: int,
    list_params: dict[str, Any] | None = None,
    check: Check | None = None,
    val_splits: tuple[str, ...] = ("val",),
) -> tuple[list[Task], Funnel, Any]:
    """Return the tasks that are kept of so many worlds, the funnel, and what `check` says of the tasks while the
    service is there."""
    from local_hosts import serving

    async with serving(resolve([env_type])) as service:
        section = {
            "n": 1,
            "max_seed_tasks": seeds,
            "train_data_path": str(folder / "tasks.jsonl"),
            "num_explore_threads": 4,
            "num_verify_threads": 4,
            "strategy_args": {"breadth_steps": 5, "depth_steps": 0},
            "deduplication": {"semantic": False, "scope": "world", "jaccard": 1.0, "contamination": "exact"},
        }
        data = {"train_filter": list_params or {}, "val_splits": list(val_splits), "val_filter": list_params or {}}
        tree = {"env_service": {"env_type": env_type, "env_url": service.url}, "data": data, "task_manager": section}
        async with open_run(QuestioningConfiguration.model_validate(tree), mind) as run:
            tasks = await run.make_tasks()
            funnel = run.pipeline.funnel()
        found = await check(service.url, tasks) if check is not None else None
        assert not service.service.instances, "every instance was released"
        return tasks, funnel, found


async def recheck(url: str, tasks: list[Task]) -> list[str | None]:
    """Return what is wrong with each task's reference when it is carried out again, None where nothing is."""
    async with AsyncEnvClient(url) as client:
        return [finding.flaw for finding in await recheck_tasks(client, tasks, {}, 4)]

"""Runs a whole synthesis over a service of its own; the language model is a mind of `tests.llm` without a server."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentevolver.llm.errors import LLMReply
from agentevolver.types import Task
from env_service.client import AsyncEnvClient
from env_service.registry import resolve
from task_manager.report import Funnel
from task_manager.settings import QuestioningConfiguration
from task_manager.synthetic_tasks import open_run
from task_manager.tasks import seed_of, solution_of
from task_manager.verify import recheck_tasks
from tests.llm.minds import Minds, world_of_type

sys.path.append(str(Path(__file__).parents[1] / "env_service"))


class MindModel:
    """Plays all roles. A share `wrong` of the tasks that it proposes has a wrong solution."""

    def __init__(self, wrong: float = 0.4) -> None:
        self._minds = Minds(wrong=wrong)
        self.proposed: list[dict[str, Any]] = []

    async def structured(self, role: Any, messages: list[dict[str, Any]], schema: Any, **sampling: Any) -> Any:
        return schema.model_validate(self._answer(messages, sampling))

    async def chat(self, role: Any, messages: list[dict[str, Any]], tools: Any = None, **sampling: Any) -> LLMReply:
        answer = self._answer(messages, sampling)
        return LLMReply(answer if isinstance(answer, str) else json.dumps(answer), 1, 1, 0.0, False)

    def context_limit(self, role: Any) -> None:
        return None

    def _answer(self, messages: list[dict[str, Any]], sampling: dict[str, Any]) -> Any:
        thought = self._minds.answer(messages, random.Random(f"{sampling.get('seed')}-{messages[1]['content']}"))
        if thought.task == "synthesiser/tasks":
            self.proposed += thought.answer["tasks"]
        return thought.answer


def wrong_ones(env_type: str, tasks: list[Task]) -> list[Task]:
    """Return the tasks whose reference, carried out by the world's own code, does not do what the query asks."""
    right = world_of_type(env_type).right
    return [task for task in tasks if not right(seed_of(task), str(task.query), solution_of(task))]


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
            "strategy_args": {"breadth_steps": 5, "depth_steps": 0},
            "deduplication": {"jaccard": 1.0},
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

"""A look at the environment before anything heavy is started: do episodes open, and do their openings fit?"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from uuid import uuid4

from agentevolver.config.schema import Settings
from agentevolver.errors import ConfigError
from agentevolver.types import Task
from agentevolver.utils.openings import replace_query
from context_manager.chat import ChatRenderer
from context_manager.registry import checked_template
from env_service.client import AsyncEnvClient, EnvRequestError
from task_manager.tasks import env_params_of, seed_of

logger = logging.getLogger(__name__)

# Openings that are looked at whatever they show; all are where one of these comes so near the limit.
TASKS = 8
NEAR = 0.75
AT_ONCE = 4


async def probe(settings: Settings, tasks: Sequence[Task], renderer: ChatRenderer) -> int:
    """Open tasks and return the length of the longest opening in tokens, with what the context template adds to it.

    Eight of each kind are opened (trained on, validated on, without a goal of the environment's), spread over the list,
    and all of a kind if one of its eight fills three quarters of `data.max_prompt_length`.

    Raises:
        ConfigError: an opening is longer than `data.max_prompt_length`, or the environment refuses
            `env_service.env_params`.
        EnvServiceError: the service fails otherwise.
    """
    service, limit = settings.env_service, settings.sizes.max_prompt_length
    kinds: dict[tuple[bool, bool], list[Task]] = defaultdict(list)
    for task in tasks:
        kinds[task.open_query, task.is_validation].append(task)
    longest = 0
    async with AsyncEnvClient(service.env_url, timeout_s=service.timeout_s) as client:
        for kind in kinds.values():
            found = await _lengths(client, settings, kind[:: max(1, len(kind) // TASKS)][:TASKS], renderer)
            if limit >= max(found) > NEAR * limit:
                found = await _lengths(client, settings, kind, renderer)
            if max(found) > limit:
                raise ConfigError(
                    _too_long(kind, max(found), sum(length > limit for length in found), len(found), limit)
                )
            longest = max(longest, *found)
    return longest


def _too_long(kind: Sequence[Task], longest: int, over: int, opened: int, limit: int) -> str:
    what = "validation tasks" if kind[0].is_validation else "tasks"
    where = f"{what} of {kind[0].env_type}" + (
        " without a goal, which synthetic ones begin as," if kind[0].open_query else ""
    )
    return (
        f"data.max_prompt_length = {limit}, but the opening messages of {over} of {opened} {where} are longer, up to "
        f"{longest} tokens: "
        f"set it to {longest} or more"
    )


async def _lengths(
    client: AsyncEnvClient, settings: Settings, tasks: Sequence[Task], renderer: ChatRenderer
) -> list[int]:
    slots = asyncio.Semaphore(min(AT_ONCE, settings.env_service.max_instances or AT_ONCE))

    async def measure(task: Task) -> int:
        async with slots:
            return await _opening_length(client, settings, task, renderer)

    try:
        async with asyncio.TaskGroup() as group:
            measured = [group.create_task(measure(task)) for task in tasks]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in measured]


async def _opening_length(client: AsyncEnvClient, settings: Settings, task: Task, renderer: ChatRenderer) -> int:
    service, instance_id = settings.env_service, f"probe-{uuid4().hex}"
    validation = service.val_env_params if task.is_validation else {}
    params = {**service.env_params, **validation, **env_params_of(task), "is_open_query": task.open_query}
    try:
        state = await client.create_instance(service.env_type, seed_of(task), instance_id, params)
    except EnvRequestError as error:
        raise ConfigError(
            f"the environment {service.env_type!r} refuses task {task.task_id!r} with {params}: {error}"
        ) from error
    try:
        opening = [dict(message) for message in state["state"]]
        if task.query is not None:
            opening = replace_query(opening, task.query, state.get("info"))
        rollout = settings.rollout
        template = checked_template(rollout)(renderer, settings.context_limits, rollout)
        return len(renderer.opening(template.opening(opening)))
    finally:
        await client.release_instance(instance_id)

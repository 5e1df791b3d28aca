"""A look at the environment before anything heavy is started: do episodes open, and do their openings fit?"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import uuid4

from agentevolver.schema import Task
from agentevolver.settings import ConfigError, Settings
from context_manager.chat import ChatRenderer
from context_manager.registry import context_limits, context_options, template_class
from env_service.client import AsyncEnvClient, EnvRequestError
from task_manager.tasks import env_params_of, seed_of

logger = logging.getLogger(__name__)

TASKS = 8


async def probe(settings: Settings, tasks: Sequence[Task], renderer: ChatRenderer) -> int:
    """Open up to eight tasks, spread over the list, and return the length of the longest opening in tokens, with
    what the context template adds to it.

    Raises:
        ConfigError: an opening is longer than `data.max_prompt_length`, or the environment refuses `env_service.env_params`.
        EnvServiceError: the service fails otherwise.
    """
    service, limit = settings.env_service, settings.sizes.max_prompt_length
    chosen = tasks[:: max(1, len(tasks) // TASKS)][:TASKS]
    longest = 0
    async with AsyncEnvClient(service.env_url, timeout_s=service.timeout_s) as client:
        for task in chosen:
            length = await _opening_length(client, settings, task, renderer)
            if length > limit:
                raise ConfigError(
                    f"data.max_prompt_length = {limit}, but the opening messages of task {task.task_id!r} have {length} tokens: "
                    f"set it to {length} or more"
                )
            longest = max(longest, length)
    return longest


async def _opening_length(client: AsyncEnvClient, settings: Settings, task: Task, renderer: ChatRenderer) -> int:
    service, instance_id = settings.env_service, f"probe-{uuid4().hex}"
    validation = service.val_env_params if task.metadata.get("validation") else {}
    params = {**service.env_params, **validation, **env_params_of(task), "is_open_query": task.open_query}
    try:
        state = await client.create_instance(service.env_type, seed_of(task), instance_id, params)
    except EnvRequestError as error:
        raise ConfigError(f"the environment {service.env_type!r} refuses task {task.task_id!r} with {params}: {error}") from error
    try:
        opening = [dict(message) for message in state["state"]]
        if task.query is not None:
            opening[-1]["content"] = task.query
        rollout = settings.rollout
        template = template_class(rollout.context_template)(renderer, context_limits(rollout, settings.sizes), context_options(rollout))
        return len(renderer.opening(template.opening(opening)))
    finally:
        await client.release_instance(instance_id)

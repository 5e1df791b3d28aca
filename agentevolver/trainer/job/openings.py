"""Openings of an environment's tasks, in tokens of the policy."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from omegaconf import DictConfig

from agentevolver.config.schema import Settings
from agentevolver.config.trees import one_line
from agentevolver.rollout.tool_calls import ToolsMissing, no_tools, read_tools
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError
from agentevolver.utils.openings import replace_query
from context_manager.chat import ChatRenderer
from context_manager.messages import ContentError, text_of
from context_manager.registry import checked_template
from env_service.client import AsyncEnvClient, EnvRequestError
from env_service.contract import NO_NATIVE_TOOLS
from task_manager.tasks import env_params_of, seed_of, stratified

# Openings that are always probed for each kind of task. If one exceeds this share of the limit, all are probed.
TASKS = 8
NEAR = 0.75
AT_ONCE = 4


def make_renderer(config: DictConfig) -> ChatRenderer:
    """Return the renderer of messages into tokens. Raises ConfigError if there is no tokenizer."""
    from transformers import AutoTokenizer

    model = config.actor_rollout_ref.model
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            model.tokenizer_path or model.path, trust_remote_code=model.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"actor_rollout_ref.model.path = {model.path}: no tokenizer there: {one_line(error)}"
        ) from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"actor_rollout_ref.model.path = {model.path}: its tokenizer names no end of a turn: set eos_token in "
            "tokenizer_config.json to the token that the chat template closes a turn with"
        )
    return ChatRenderer(tokenizer, dict(config.data.apply_chat_template_kwargs))


async def probe(settings: Settings, tasks: Sequence[Task], renderer: ChatRenderer) -> int:
    """Open tasks at the run's environment service and return the length of the longest opening in tokens.

    Raises ConfigError if an opening is too long, or the environment refuses its parameters or native tools;
    EnvServiceError for other failures.
    """
    service, limit = settings.env_service, settings.sizes.max_prompt_length
    longest = 0
    async with AsyncEnvClient(service.env_url, timeout_s=service.timeout_s) as client:
        for kind in kinds(tasks):
            found = await lengths(client, settings, chosen(kind), renderer)
            # All tasks of a kind if one of the chosen comes close to the limit.
            if limit >= max(found) > NEAR * limit:
                found = await lengths(client, settings, kind, renderer)
            if max(found) > limit:
                raise ConfigError(
                    _too_long(kind, max(found), sum(length > limit for length in found), len(found), limit)
                )
            longest = max(longest, *found)
    return longest


def kinds(tasks: Sequence[Task]) -> list[list[Task]]:
    """Group the tasks by environment, by synthetic or original, and by training or validation."""
    found: dict[tuple[str, bool, bool], list[Task]] = defaultdict(list)
    for task in tasks:
        found[task.env_type, task.open_query, task.is_validation].append(task)
    return list(found.values())


def chosen(kind: Sequence[Task]) -> Sequence[Task]:
    """Return the tasks of a kind whose openings are probed."""
    return stratified(kind, TASKS, 0)


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


async def lengths(client: Any, settings: Settings, tasks: Sequence[Task], renderer: ChatRenderer) -> list[int]:
    """Return the length of each task's opening in tokens, context template included.

    Args:
        client: methods of `AsyncEnvClient`.

    Raises ConfigError if the environment refuses its parameters or native tools; EnvServiceError for other failures.
    """
    slots = asyncio.Semaphore(AT_ONCE)

    async def measure(task: Task) -> int:
        async with slots:
            return await _opening_length(client, settings, task, renderer)

    try:
        async with asyncio.TaskGroup() as group:
            measured = [group.create_task(measure(task)) for task in tasks]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in measured]


async def _opening_length(client: Any, settings: Settings, task: Task, renderer: ChatRenderer) -> int:
    instance_id, own = f"probe-{uuid4().hex}", settings.environment(task.env_type)
    params = {
        **own.params(validation=task.is_validation),
        **env_params_of(task),
        "is_open_query": task.open_query,
    }
    native = settings.rollout.tool_format != "none" and own.native_tools
    if native:
        params["native_tools"] = True
    try:
        state = await client.create_instance(task.env_type, seed_of(task), instance_id, params)
    except EnvRequestError as error:
        if native and NO_NATIVE_TOOLS in str(error):
            raise ConfigError(_no_tools(no_tools(task.env_type), settings, task.env_type)) from error
        raise ConfigError(
            f"the environment {task.env_type!r} refuses task {task.task_id!r} with {params}: {error}"
        ) from error
    try:
        opening = [{**message, "content": text_of(message)} for message in state["state"]]
        if task.query is not None:
            opening = replace_query(opening, task.query, state.get("info"))
        rollout = settings.rollout
        if native:
            renderer = renderer.for_tools(read_tools(state.get("info"), task.env_type))
        template = checked_template(rollout)(renderer, settings.context_limits, rollout)
        return len(renderer.opening(template.opening(opening)))
    except ToolsMissing as error:
        raise ConfigError(_no_tools(str(error), settings, task.env_type)) from error
    except ContentError as error:
        raise ConfigError(f"the environment {task.env_type!r}, task {task.task_id!r}: {error}") from error
    finally:
        await client.release_instance(instance_id)


def _no_tools(problem: str, settings: Settings, env_type: str) -> str:
    several = settings.env_service.is_mixture
    return f"{problem}, or env_service.environments.{env_type}.native_tools to false" if several else problem

"""Drafts the profile of an environment that nobody described yet, from its tools and a few exploratory steps in it.

A draft is a beginning: read it and say in `task_preference` and `rubrics` what you want before tasks are made of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError, model_validator

from agentevolver.llm.asking import FILTERED_OR_UNUSABLE, Asker
from agentevolver.llm.prompts import Messages
from agentevolver.llm.settings import Role
from task_manager import prompts
from task_manager.explore import Explorer
from task_manager.profile import Entity, EnvProfile, Operation, TaskPreference
from task_manager.settings import MAX_OBSERVATION_CHARS, ReplyFormat, StrategySettings
from task_manager.strategies import RandomStrategy
from task_manager.workshop import configured_format
from task_manager.world import World, WorldClient, open_world

if TYPE_CHECKING:
    from agentevolver.llm.client import LLM


class DraftReply(EnvProfile):
    """A profile as a model writes it: keys that a profile does not have are left out, and so are entities and
    operations that are none."""

    @model_validator(mode="before")
    @classmethod
    def _without_the_rest(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        kept = _known(data, EnvProfile)
        if isinstance(kept.get("entities"), list):
            entities = [_known(item, Entity) for item in kept["entities"] if isinstance(item, Mapping)]
            for entity in entities:
                if isinstance(entity.get("opts"), list):
                    operations = [_known(item, Operation) for item in entity["opts"] if isinstance(item, Mapping)]
                    entity["opts"] = [item for item in operations if _is(item, Operation)]
            kept["entities"] = [entity for entity in entities if _is(entity, Entity)]
        if isinstance(kept.get("task_preference"), Mapping):
            kept["task_preference"] = _known(kept["task_preference"], TaskPreference)
        return kept


def _known(data: Mapping[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key in kind.model_fields}


def _is(data: Any, kind: type[BaseModel]) -> bool:
    try:
        kind.model_validate(data)
    except ValidationError:
        return False
    return True


async def draft_profile(
    client: WorldClient,
    llm: LLM,
    world: World,
    *,
    steps: int = 8,
    reply_format: ReplyFormat = "text",
    max_chars: int = MAX_OBSERVATION_CHARS,
    action_format: str | None = None,
) -> EnvProfile:
    """Return a drafted profile.

    Raises LLMError or EnvServiceError if model or environment fail, ConfigError for an action format that is none.
    """
    fmt = configured_format(world.env_type, action_format)
    async with open_world(client, world, fmt.explore_params(1)) as (instance_id, _):
        tools = tools_text(await client.get_tools_info(instance_id))
    settings = StrategySettings(breadth_steps=steps, depth_steps=0)
    explorer = Explorer(
        client, llm, fmt, None, RandomStrategy(), settings, reply_format=reply_format, max_chars=max_chars
    )
    exploration = await explorer.explore(world, 0)

    def prompt(room: int | None) -> Messages:
        return prompts.draft_profile(exploration.opening, tools, exploration.transcript, max_chars=max_chars, room=room)

    asker = Asker(llm, redraws=FILTERED_OR_UNUSABLE)
    reply = await asker.structured(Role.SYNTHESISER, prompt, DraftReply, temperature=0.3)
    return EnvProfile.model_validate(reply.model_dump())


def tools_text(told: Any) -> str:
    """Return an environment's tools as JSON text, "" if it tells none."""
    if isinstance(told, dict) and "tools" in told:
        told = told["tools"]
    if not told:
        return ""
    return told if isinstance(told, str) else json.dumps(told, ensure_ascii=False)

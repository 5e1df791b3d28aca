"""Drafts the profile of an environment that nobody described yet, from its tools and a few exploratory steps in it.

A draft is a beginning: read it and say in `task_preference` and `rubrics` what you want before tasks are made of it.
"""

from __future__ import annotations

import json
from typing import Any

from agentevolver.llm.settings import Role
from task_manager import prompts
from task_manager.execution import World, WorldClient, open_world
from task_manager.explore import Explorer
from task_manager.formats import format_of
from task_manager.models import LanguageModel
from task_manager.profile import EnvProfile
from task_manager.settings import StrategySettings
from task_manager.strategies import RandomStrategy


async def draft_profile(client: WorldClient, llm: LanguageModel, world: World, *, steps: int = 8) -> EnvProfile:
    """Return a drafted profile; raises LLMError or EnvServiceError if model or environment fail."""
    fmt = format_of(world.env_type)
    async with open_world(client, world, fmt.explore_params(1)) as (instance_id, _):
        tools = tools_text(await client.get_tools_info(instance_id))
    settings = StrategySettings(breadth_steps=steps, depth_steps=0)
    explorer = Explorer(client, llm, fmt, None, RandomStrategy(), settings)
    exploration = await explorer.explore(world, 0)
    messages = prompts.draft_profile(exploration.opening, tools, exploration.transcript)
    return await llm.structured(Role.SYNTHESISER, messages, EnvProfile, temperature=0.3)


def tools_text(told: Any) -> str:
    """Return an environment's tools as JSON text, "" if it tells none."""
    if isinstance(told, dict) and "tools" in told:
        told = told["tools"]
    if not told:
        return ""
    return told if isinstance(told, str) else json.dumps(told, ensure_ascii=False)

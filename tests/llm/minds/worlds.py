"""The worlds that minds know, in the order in which a prompt is tried on them."""

from __future__ import annotations

from tests.llm.minds.appworld_world import AppworldWorld
from tests.llm.minds.bfcl_world import BfclWorld
from tests.llm.minds.gymnasium_world import GymnasiumWorld
from tests.llm.minds.mcp_world import McpWorld
from tests.llm.minds.pocket_world import Pocket
from tests.llm.minds.python_world import PythonWorld
from tests.llm.minds.world import World

WORLDS: tuple[World, ...] = (AppworldWorld(), PythonWorld(), GymnasiumWorld(), McpWorld(), BfclWorld(), Pocket())


def world_of_type(env_type: str) -> World:
    """Return the world of an environment's type; raises KeyError."""
    return {world.env_type: world for world in WORLDS}[env_type]

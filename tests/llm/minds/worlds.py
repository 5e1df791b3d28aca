"""The worlds that minds know: `mind.py` beside each environment's tests, in the order in which a prompt is tried."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from tests.llm.minds.world import World

_FOLDERS = ("appworld", "python_tool", "gymnasium", "mcp_tools", "bfcl", "pocket")
_MINDS = [f"env_service.environments.{folder}.tests.mind" for folder in _FOLDERS]
WORLDS: tuple[World, ...] = tuple(
    import_module(name).PLAYER for name in _MINDS if find_spec(name.rpartition(".tests")[0]) is not None
)


def world_of_type(env_type: str) -> World:
    """Return the world of an environment's type; raises KeyError."""
    return {world.env_type: world for world in WORLDS}[env_type]

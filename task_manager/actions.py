"""Reads an instance's state, and finds an environment's action format (`PlainFormat`)."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec

from agentevolver.utils.errors import ConfigError
from agentevolver.utils.names import load_class
from env_service.action_format import PlainFormat as PlainFormat
from env_service.protocol import EnvRequestError, Instances
from env_service.registry import known_environments
from task_manager.state import WorldState, flatten

ENTRY_POINT_GROUP = "agentevolver.action_formats"


async def read_state(client: Instances, instance_id: str) -> WorldState | None:
    """Return the instance's state, or None if the environment exposes none. Client errors pass through."""
    try:
        told = await client.get_tools_info(instance_id, params={"what": "state"})
    except EnvRequestError:
        # A request error means that this environment has no state endpoint.
        return None
    if not isinstance(told, dict) or not isinstance(told.get("facts"), dict):
        return None
    return WorldState(
        flatten(told["facts"]),
        told.get("answer"),
        finished=told.get("finished"),
        exact=bool(told.get("exact", False)),
        prose=bool(told.get("prose", False)),
    )


def format_of(env_type: str, spec: str | None = None) -> PlainFormat:
    """Return the environment's action format; `spec` (`package.module:Class`) overrides the registered one.

    Raises ConfigError if the class cannot be imported or is not an action format.
    """
    # Lookup order: `spec`, an entry point named after the environment, the class `Format` in the module
    # `action_format` beside the environment's class, `PlainFormat`.
    named = spec or next((point.value for point in entry_points(group=ENTRY_POINT_GROUP, name=env_type)), None)
    return (_shipped(env_type) if named is None else _load(named))(env_type)


def _load(spec: str) -> type[PlainFormat]:
    try:
        return load_class(spec, PlainFormat, ())
    except ValueError as error:
        raise ConfigError(f"task_manager.action_format: the action format {spec!r}: {error}") from error


def _shipped(env_type: str) -> type[PlainFormat]:
    package = known_environments().get(env_type, "").partition(":")[0].rpartition(".")[0]
    try:
        found = package and find_spec(f"{package}.action_format")
    except ImportError:
        found = None
    return _load(f"{package}.action_format:Format") if found else PlainFormat

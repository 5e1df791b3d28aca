"""Reader of the environment contract: an instance's state, and the action format of an environment.

An action format (`PlainFormat`) says what only a text can tell of an action. An environment brings its own beside its
class (`env_service.action_format`); another is registered as an entry point of the group
`agentevolver.action_formats` under the environment's name, or named by `task_manager.action_format`.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec

from agentevolver.errors import ConfigError
from agentevolver.utils.names import load_class
from env_service.action_format import PlainFormat as PlainFormat
from env_service.protocol import EnvRequestError, Instances
from env_service.registry import known_environments
from task_manager.state import WorldState, flatten

ENTRY_POINT_GROUP = "agentevolver.action_formats"


async def read_state(client: Instances, instance_id: str) -> WorldState | None:
    """Return the state that the environment tells of an instance, None if it tells none.
    Raises what the client raises."""
    try:
        told = await client.get_tools_info(instance_id, params={"what": "state"})
    except EnvRequestError:
        # It refuses the question, so it knows no states.
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


_registered: dict[str, type[PlainFormat]] = {}


def format_of(env_type: str, spec: str | None = None) -> PlainFormat:
    """Return the action format of an environment: the class that `spec` (`package.module:Class`) names, else the one
    registered for it.

    Raises ConfigError for a class that cannot be imported or is none.
    """
    if spec is None and env_type in _registered:
        return _registered[env_type](env_type)
    named = spec or next((point.value for point in entry_points(group=ENTRY_POINT_GROUP, name=env_type)), None)
    return (_shipped(env_type) if named is None else _load(named))(env_type)


def register_format(env_type: str, kind: type[PlainFormat]) -> None:
    """Make the format of another environment known in this process."""
    _registered[env_type] = kind


def _load(spec: str) -> type[PlainFormat]:
    try:
        return load_class(spec, PlainFormat, ())
    except ValueError as error:
        raise ConfigError(f"task_manager.action_format: the action format {spec!r}: {error}") from error


def _shipped(env_type: str) -> type[PlainFormat]:
    """Return the class `Format` in the module `action_format` beside an environment's class, else `PlainFormat`."""
    package = known_environments().get(env_type, "").partition(":")[0].rpartition(".")[0]
    try:
        found = package and find_spec(f"{package}.action_format")
    except ImportError:
        found = None
    return _load(f"{package}.action_format:Format") if found else PlainFormat

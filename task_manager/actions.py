"""Reader of the environment contract: what an action did, what an instance's state is, how an action is written.

What became of an action and of the world is said by the environment (`env_service.base.StepInfo`, `StateInfo`), so
`PlainFormat` serves every environment. What only a text can tell (which action ends an episode, how a native tool call
is written) differs between
environments: `PlainFormat` knows the common forms, and a class of one's own says more. Such a class is registered as an
    entry point of
the group `agentevolver.action_formats` under the environment's name, or named by `task_manager.action_format`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any, ClassVar, Protocol

from agentevolver.errors import ConfigError
from agentevolver.utils.names import load_class
from env_service.protocol import EnvRequestError
from task_manager.state import WorldState, flatten

Result = dict[str, Any]

ENTRY_POINT_GROUP = "agentevolver.action_formats"
BUILT_IN = {
    "pocket": "task_manager.known_formats:PocketFormat",
    "pocket_long": "task_manager.known_formats:PocketFormat",
    "bfcl": "task_manager.known_formats:ToolCallFormat",
    "mcp": "task_manager.known_formats:ToolCallFormat",
    "python": "task_manager.known_formats:PythonFormat",
    "appworld": "task_manager.known_formats:AppworldFormat",
    "gymnasium": "task_manager.known_formats:GymnasiumFormat",
}
_CALL = re.compile(r'<tool_call>\s*\{\s*"name"\s*:\s*"([^"]+)"')


class StateClient(Protocol):
    """What is used of an environment client to look at an instance."""

    async def get_tools_info(
        self, instance_id: str, messages: Any = ..., params: dict[str, Any] | None = ...
    ) -> Any: ...


async def read_state(client: StateClient, instance_id: str) -> WorldState | None:
    """Return the state that the environment tells of an instance, None if it tells none. Raises what the client
    raises."""
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


class PlainFormat:
    """Actions of any environment; the base of formats of one's own. An action is the text of one assistant message.

    `executable`: whether a list of actions may be carried out again without a model. False where that would cost or
        harm.
    """

    executable: ClassVar[bool] = True

    def __init__(self, env_type: str) -> None:
        self.env_type = env_type

    def explore_params(self, steps: int) -> dict[str, Any]:
        """Return what an instance to explore for so many steps is created with, beside `is_open_query`."""
        return {"explore_steps": max(1, steps)}

    def replay_params(self, actions: int) -> dict[str, Any]:
        """Return what an instance for carrying out so many actions is created with, beside `is_open_query`."""
        return {"explore_steps": max(1, actions)}

    def task_params(self, actions: int, env_params: dict[str, Any]) -> dict[str, Any]:
        """Return what the episodes of a synthetic task need on top of `env_params`, for a reference of so many
        actions."""
        return {}

    def tells(self, result: Result) -> bool:
        """Whether the environment said what became of the action of a step."""
        return "refused" in result["info"] or "finished" in result["info"]

    def refusal(self, result: Result) -> str | None:
        """Return why a step was refused or failed, None if it was carried out or the environment does not say."""
        refused = result["info"].get("refused")
        if not refused:
            return None
        return (
            refused if isinstance(refused, str) else "\n".join(str(message["content"]) for message in result["state"])
        )

    def finished(self, result: Result) -> bool:
        """Whether a step ended the episode as an agent should end it; the end of the episode where the environment does
        not say."""
        return bool(result["is_terminated"] and result["info"].get("finished", True))

    def closing(self, answer: str | None) -> str | None:
        """Return the action that ends an episode with an answer, None if there is no such action or it is not known."""
        return None

    def answer_of(self, action: str) -> str | None:
        """Return the answer that an action gives if its text ends the episode ("" for none), None if it does not, or
        that is not known."""
        return None

    def action_of_call(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Return the text of the action that a native tool call means, None if the environment has no such action."""
        return tool_call(name, arguments)

    def signature(self, action: str) -> str:
        """Return what kind of action it is, for the record of what was tried: the tools it calls, else the beginning of
        its text."""
        return ", ".join(_CALL.findall(action)) or shortened(action)

    async def state(self, client: StateClient, instance_id: str) -> WorldState | None:
        """Return the instance's state, None if the environment does not tell."""
        return await read_state(client, instance_id)

    def complete(self, actions: Sequence[str], answer: str | None) -> list[str]:
        """Return the actions up to the one that ends the episode, which is added if it is missing and known."""
        kept: list[str] = []
        for action in actions:
            if not action.strip():
                continue
            kept.append(action)
            if self.answer_of(action) is not None:
                return kept
        closing = self.closing(answer)
        return kept if closing is None else [*kept, closing]


_registered: dict[str, type[PlainFormat]] = {}


def format_of(env_type: str, spec: str | None = None) -> PlainFormat:
    """Return the action format of an environment: the class that `spec` (`package.module:Class`) names, else the one
    registered for it.

    Raises ConfigError for a class that cannot be imported or is none.
    """
    if spec is None and env_type in _registered:
        return _registered[env_type](env_type)
    named = spec or next(
        (point.value for point in entry_points(group=ENTRY_POINT_GROUP, name=env_type)), BUILT_IN.get(env_type)
    )
    return (PlainFormat if named is None else _load(named))(env_type)


def register_format(env_type: str, kind: type[PlainFormat]) -> None:
    """Make the format of another environment known in this process."""
    _registered[env_type] = kind


def tool_call(name: str, arguments: dict[str, Any]) -> str:
    """Return a call in the text form of the Qwen chat template."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def shortened(action: str) -> str:
    """Return an action on one line of at most 60 characters."""
    line = " ".join(action.split())
    return line if len(line) <= 60 else line[:57] + "..."


def _load(spec: str) -> type[PlainFormat]:
    try:
        return load_class(spec, PlainFormat, ())
    except ValueError as error:
        raise ConfigError(f"task_manager.action_format: the action format {spec!r}: {error}") from error

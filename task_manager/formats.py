"""How the actions of an environment are written, what refuses them, and what can be known of its state.

A format is all that self-questioning knows of a particular environment. An action is the text of one assistant message. Environments
without a format of their own get `PlainFormat`: messages are passed on as they are, nothing is executed for verification.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from task_manager.state import WorldState, flatten

Result = dict[str, Any]


class StateClient(Protocol):
    """What is used of an environment client to look at an instance."""

    async def get_tools_info(self, instance_id: str, messages: Any = ..., params: dict[str, Any] | None = ...) -> Any: ...


class PlainFormat:
    """Text in, text out; the base of the others.

    `executable`: whether a list of actions can be carried out without a model, and refusals be told from results.
    """

    executable: ClassVar[bool] = False

    def __init__(self, env_type: str) -> None:
        self.env_type = env_type

    def explore_params(self, steps: int) -> dict[str, Any]:
        """Return what an instance to explore for so many steps is created with, beside `is_open_query`."""
        return {}

    def replay_params(self, actions: int) -> dict[str, Any]:
        """Return what an instance for carrying out so many actions is created with, beside `is_open_query`."""
        return {}

    def task_params(self, actions: int, env_params: dict[str, Any]) -> dict[str, Any]:
        """Return what the episodes of a synthetic task need on top of `env_params`, for a reference of so many actions."""
        return {}

    def refusal(self, result: Result) -> str | None:
        """Return why a step was refused or failed, None if it was carried out."""
        return None

    def finished(self, result: Result) -> bool:
        """Whether a step ended the episode as an agent should end it."""
        return bool(result["is_terminated"])

    def closing(self, answer: str | None) -> str | None:
        """Return the action that ends an episode with an answer, None if there is no such action."""
        return None

    def answer_of(self, action: str) -> str | None:
        """Return the answer that an action gives if it ends the episode ("" for none), None if it does not end it."""
        return None

    def signature(self, action: str) -> str:
        """Return what kind of action it is, for the record of what was tried."""
        return _shortened(action)

    async def state(self, client: StateClient, instance_id: str) -> WorldState | None:
        """Return the instance's state, None if the environment does not tell."""
        return None

    def complete(self, actions: Sequence[str], answer: str | None) -> list[str]:
        """Return the actions up to the one that ends the episode, which is added if it is missing."""
        kept: list[str] = []
        for action in actions:
            if not action.strip():
                continue
            kept.append(action)
            if self.answer_of(action) is not None:
                return kept
        closing = self.closing(answer)
        return kept if closing is None else [*kept, closing]


class PocketFormat(PlainFormat):
    """One call a message: `TOOL ARGS`, ended by `done [ANSWER]`."""

    executable: ClassVar[bool] = True

    def explore_params(self, steps: int) -> dict[str, Any]:
        return {"explore_steps": steps, "verbose": True}

    def replay_params(self, actions: int) -> dict[str, Any]:
        return {"explore_steps": max(1, actions)}

    def task_params(self, actions: int, env_params: dict[str, Any]) -> dict[str, Any]:
        """As many steps as an original task with such a solution has: the solution's and `slack`, which pocket takes to be 1."""
        return {"explore_steps": max(1, actions) + int(env_params.get("slack", 1))}

    def refusal(self, result: Result) -> str | None:
        return _text(result) if result["info"].get("refused") else None

    def finished(self, result: Result) -> bool:
        return bool(result["info"].get("stop_reason") == "finished")

    def closing(self, answer: str | None) -> str | None:
        return f"done {answer}" if answer else "done"

    def answer_of(self, action: str) -> str | None:
        tool, arguments = _pocket_call(action)
        return " ".join(arguments) if tool == "done" else None

    def signature(self, action: str) -> str:
        tool, arguments = _pocket_call(action)
        return f"{tool} {arguments[0]}" if tool == "doc" and arguments else tool

    async def state(self, client: StateClient, instance_id: str) -> WorldState | None:
        said = await client.get_tools_info(instance_id, params={"what": "state"})
        return WorldState(flatten(said["facts"]), said["answer"], finished=said["answer"] is not None)


class BfclFormat(PlainFormat):
    """Function calls as `<tool_call>{...}</tool_call>`; a message without a call is the answer and ends the episode."""

    executable: ClassVar[bool] = True
    _RESPONSE = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
    _CALL = re.compile(r'<tool_call>\s*\{\s*"name"\s*:\s*"([^"]+)"')

    def explore_params(self, steps: int) -> dict[str, Any]:
        return {"max_steps_per_turn": steps + 1}

    def replay_params(self, actions: int) -> dict[str, Any]:
        return {"max_steps_per_turn": actions + 1}

    def refusal(self, result: Result) -> str | None:
        if result["info"].get("malformed_calls"):
            return _text(result)
        for response in self._RESPONSE.findall(_text(result)):
            if response.startswith("Error during execution:") or _has_error(response):
                return str(response)
        return None

    def finished(self, result: Result) -> bool:
        return bool(result["info"].get("stop_reason") == "finished")

    def closing(self, answer: str | None) -> str | None:
        return answer or "Done."

    def answer_of(self, action: str) -> str | None:
        return None if "<tool_call>" in action else action

    def signature(self, action: str) -> str:
        return ", ".join(self._CALL.findall(action)) or "(answer)"

    async def state(self, client: StateClient, instance_id: str) -> WorldState | None:
        return WorldState(flatten(await client.get_tools_info(instance_id, params={"what": "state"})))


class AppworldFormat(PlainFormat):
    """Python in fences; `apis.supervisor.complete_task(...)` ends the episode. Its state tells which tables changed, not how."""

    executable: ClassVar[bool] = True
    _API = re.compile(r"\bapis\.(\w+)\.(\w+)\(")
    _COMPLETE = re.compile(r"apis\.supervisor\.complete_task\((?:answer\s*=\s*)?(.*?)\)\s*$", re.MULTILINE)

    def explore_params(self, steps: int) -> dict[str, Any]:
        return {"max_interactions": steps}

    def replay_params(self, actions: int) -> dict[str, Any]:
        return {"max_interactions": max(1, actions)}

    def refusal(self, result: Result) -> str | None:
        info = result["info"]
        return _text(result) if info.get("failed") or not info.get("blocks") else None

    def finished(self, result: Result) -> bool:
        return bool(result["info"].get("stop_reason") == "finished")

    def closing(self, answer: str | None) -> str | None:
        argument = f"answer={answer!r}" if answer else ""
        return f"```python\napis.supervisor.complete_task({argument})\n```"

    def answer_of(self, action: str) -> str | None:
        found = self._COMPLETE.search(action)
        if found is None:
            return None
        argument = found[1].strip()
        try:
            return str(ast.literal_eval(argument)) if argument else ""
        except (ValueError, SyntaxError):
            return "" if argument.startswith("status") else argument

    def signature(self, action: str) -> str:
        return ", ".join(dict.fromkeys(f"{app}.{api}" for app, api in self._API.findall(action))) or _shortened(action)

    async def state(self, client: StateClient, instance_id: str) -> WorldState | None:
        said = await client.get_tools_info(instance_id, params={"what": "state"})
        changed = {f"changed/{model}": True for model in said["changed_models"]}
        return WorldState(changed, finished=bool(said["completed"]), exact=False)


_FORMATS: dict[str, type[PlainFormat]] = {"pocket": PocketFormat, "bfcl": BfclFormat, "appworld": AppworldFormat}


def format_of(env_type: str) -> PlainFormat:
    """Return the format of an environment."""
    return _FORMATS.get(env_type, PlainFormat)(env_type)


def register_format(env_type: str, kind: type[PlainFormat]) -> None:
    """Make the format of another environment known."""
    _FORMATS[env_type] = kind


def _text(result: Result) -> str:
    return "\n".join(str(message["content"]) for message in result["state"])


def _shortened(action: str) -> str:
    line = " ".join(action.split())
    return line if len(line) <= 60 else line[:57] + "..."


def _pocket_call(action: str) -> tuple[str, list[str]]:
    text = re.sub(r"<think>.*?(</think>|\Z)", "", action, flags=re.DOTALL).strip()
    if (at := text.find("<tool_call>")) >= 0 or text.startswith("{"):
        try:
            call, _ = json.JSONDecoder().raw_decode(text[at + len("<tool_call>") :].lstrip() if at >= 0 else text)
            return str(call["name"]).lower(), [str(value) for value in call.get("arguments", {}).values()]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            return "", []
    first = text.splitlines()[0].strip("` ").split() if text else []
    return (first[0].lower(), first[1:]) if first else ("", [])


def _has_error(response: str) -> bool:
    try:
        value = json.loads(response)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "error" in value

"""Action formats of the environments that come along: which text ends an episode, and how a native tool call is
written.

What an action did is not here: the environments say it (`task_manager.actions`).
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from task_manager.actions import PlainFormat


class PocketFormat(PlainFormat):
    """One call a message: `TOOL ARGS`, ended by `done [ANSWER]`."""

    def explore_params(self, steps: int) -> dict[str, Any]:
        """Exploring is a language model's, which needs the rules in full."""
        return {**super().explore_params(steps), "verbose": True}

    def task_params(self, actions: int, env_params: dict[str, Any]) -> dict[str, Any]:
        """As many steps as an original task with such a solution has: the solution's and `slack`, which pocket takes to
        be 1."""
        return {"explore_steps": max(1, actions) + int(env_params.get("slack", 1))}

    def closing(self, answer: str | None) -> str | None:
        return f"done {answer}" if answer else "done"

    def answer_of(self, action: str) -> str | None:
        tool, arguments = _pocket_call(action)
        return " ".join(arguments) if tool == "done" else None

    def signature(self, action: str) -> str:
        tool, arguments = _pocket_call(action)
        return f"{tool} {arguments[0]}" if tool == "doc" and arguments else tool


class ToolCallFormat(PlainFormat):
    """Function calls as `<tool_call>{...}</tool_call>`; a message without a call is the answer and ends the episode."""

    def closing(self, answer: str | None) -> str | None:
        if not answer:
            return "Done."
        return f"Answer: {answer}" if self.env_type == "mcp" else answer

    def answer_of(self, action: str) -> str | None:
        return None if "<tool_call>" in action else action

    def signature(self, action: str) -> str:
        return super().signature(action) if "<tool_call>" in action else "(answer)"


class PythonFormat(PlainFormat):
    r"""Python in fences or as calls of the tool `python`; `\boxed{ANSWER}` or a line `answer: ...` ends the episode."""

    def closing(self, answer: str | None) -> str | None:
        return f"\\boxed{{{answer or 'done'}}}"

    def answer_of(self, action: str) -> str | None:
        from env_service.environments.python_tool.actions import Answer, parse

        found = parse({"role": "assistant", "content": action})
        return found.text if isinstance(found, Answer) else None


class AppworldFormat(PlainFormat):
    """Python in fences; `apis.supervisor.complete_task(...)` ends the episode."""

    _API = re.compile(r"\bapis\.(\w+)\.(\w+)\(")
    _COMPLETE = re.compile(r"apis\.supervisor\.complete_task\((?:answer\s*=\s*)?(.*?)\)\s*$", re.MULTILINE)

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

    def action_of_call(self, name: str, arguments: dict[str, Any]) -> str | None:
        """A call that carries code is that code; `complete_task` and an API by name (`app.api`) are calls of it in
        Python."""
        code = arguments.get("code")
        if isinstance(code, str):
            return f"```python\n{code}\n```"
        app, dot, api = name.removeprefix("apis.").replace("__", ".").rpartition(".")
        if not dot:
            app, api = "supervisor", name
            if name != "complete_task":
                return None
        if not (app.isidentifier() and api.isidentifier() and all(key.isidentifier() for key in arguments)):
            return None
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        call = f"apis.{app}.{api}({given})"
        return f"```python\n{call if api == 'complete_task' else f'print({call})'}\n```"

    def signature(self, action: str) -> str:
        return ", ".join(dict.fromkeys(f"{app}.{api}" for app, api in self._API.findall(action))) or super().signature(
            action
        )


class GymnasiumFormat(PlainFormat):
    """`action: NAME`; an episode without a goal also ends with `action: done [ANSWER]`."""

    _DONE = re.compile(r"^\s*action:\s*done\b[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)

    def task_params(self, actions: int, env_params: dict[str, Any]) -> dict[str, Any]:
        """Room for detours in the measure that the worlds give their own tasks."""
        return {"explore_steps": 2 * max(1, actions) + 5}

    def closing(self, answer: str | None) -> str | None:
        return f"action: done {answer}" if answer else "action: done"

    def answer_of(self, action: str) -> str | None:
        found = self._DONE.search(action)
        return found[1].strip() if found is not None else None

    def action_of_call(self, name: str, arguments: dict[str, Any]) -> str | None:
        """The one argument of a call names the action; a call without arguments is the action of its name."""
        values = list(arguments.values())
        if len(values) > 1:
            return None
        return f"action: {values[0] if values else name}"


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

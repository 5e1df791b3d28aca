"""The action format of AppWorld: Python in fences, `complete_task` ends the episode."""

from __future__ import annotations

import ast
import re
from typing import Any

from env_service.action_format import PlainFormat


class AppWorldFormat(PlainFormat):
    exploration = (3, 17)  # as in the paper, 7.1.3

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
        """A call that carries code is that code; `complete_task`
        and an API by name (`app.api`) are calls of it in Python."""
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


Format = AppWorldFormat

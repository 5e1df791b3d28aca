"""The action format of Gymnasium's worlds: `action: NAME`, `action: done` ends an episode without a goal."""

from __future__ import annotations

import re
from typing import Any

from env_service.action_format import PlainFormat


class GymnasiumFormat(PlainFormat):
    """`action: NAME`; an episode without a goal also ends with `action: done [ANSWER]`."""

    exploration = (4, 16)

    _DONE = re.compile(r"^\s*action:\s*done\b[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)

    def task_params(self, actions: int, env_params: dict[str, Any]) -> dict[str, Any]:
        return {"explore_steps": 2 * max(1, actions) + 5}

    def closing(self, answer: str | None) -> str | None:
        return f"action: done {answer}" if answer else "action: done"

    def answer_of(self, action: str) -> str | None:
        found = self._DONE.search(action)
        return found[1].strip() if found is not None else None

    def action_of_call(self, name: str, arguments: dict[str, Any]) -> str | None:
        """A call's only argument is the action; without arguments, the call's name is."""
        values = list(arguments.values())
        if len(values) > 1:
            return None
        return f"action: {values[0] if values else name}"


Format = GymnasiumFormat

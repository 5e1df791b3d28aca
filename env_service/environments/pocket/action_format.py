"""The action format of PocketWorld: one call a message, `done` ends the episode."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from env_service.action_format import PlainFormat
from env_service.environments.pocket.app_env import MAX_CALLS, AppParams
from env_service.feedback import HINT


class PocketFormat(PlainFormat):
    """One call a message: `TOOL ARGS`, ended by `done [ANSWER]`.

    Goals of `pocket_app` need several look-ups, and more spare steps to learn the site's quirks.
    """

    exploration = (4, 8)

    def __init__(self, env_type: str) -> None:
        super().__init__(env_type)
        self._slack, self._most_calls = 1, sys.maxsize
        if env_type == "pocket_app":
            self.exploration = (4, 12)
            self._slack, self._most_calls = AppParams().slack, MAX_CALLS

    def explore_params(self, steps: int) -> dict[str, Any]:
        return {**super().explore_params(steps), "verbose": True, "manual": True}

    def task_params(self, actions: int, env_params: dict[str, Any]) -> dict[str, Any]:
        """Limit the steps as in an original task: the solution's length plus `slack`."""
        steps = max(1, actions) + int(env_params.get("slack", self._slack))
        return {"explore_steps": min(steps, self._most_calls)}

    def closing(self, answer: str | None) -> str | None:
        return f"done {answer}" if answer else "done"

    def answer_of(self, action: str) -> str | None:
        tool, arguments = _pocket_call(action)
        return " ".join(arguments) if tool == "done" else None

    def signature(self, action: str) -> str:
        tool, arguments = _pocket_call(action)
        return f"{tool} {arguments[0]}" if tool == "doc" and arguments else tool

    def fault(self, action: str, observation: str) -> tuple[str, str] | None:
        """Parse the text after `err`; names of things are dropped where only the rule matters."""
        if not observation.startswith("err "):
            return None
        words = _FIND_FIRST.sub("find first", observation.removeprefix("err ").partition(HINT)[0])
        for kind, pattern in _FAULTS:
            if pattern.match(words):
                return kind, words
        return "refused", words


_FIND_FIRST = re.compile(r"^find \S+ first")
_FAULTS = (
    ("malformed", re.compile(r"no tool |empty call|broken json|not a call|arguments are |no call")),
    ("missing_call", re.compile(r"login first|read doc |find first")),
    ("wrong_argument", re.compile(r"use |add |no such id|no product|wrong pin|only ")),
)


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


Format = PocketFormat

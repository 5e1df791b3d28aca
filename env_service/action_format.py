"""Action formats: how an environment's actions are written, and what a step's result says about one.

`PlainFormat` knows the common forms and serves every environment. An environment with its own forms has a class
`Format` in the module `action_format` beside its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

Result = dict[str, Any]

_CALL = re.compile(r'<tool_call>\s*\{\s*"name"\s*:\s*"([^"]+)"')


class PlainFormat:
    """Actions of any environment; base of other formats. An action is the text of one assistant message."""

    # Whether actions may be replayed without a model; False if that would cost or do harm.
    executable: ClassVar[bool] = True
    exploration: tuple[int, int] = (3, 12)  # default steps of an explorer: (breadth, depth)

    def __init__(self, env_type: str) -> None:
        self.env_type = env_type

    def explore_params(self, steps: int) -> dict[str, Any]:
        """Return the parameters of an instance to explore for `steps` steps, beside `is_open_query`."""
        return {"explore_steps": max(1, steps)}

    def replay_params(self, actions: int) -> dict[str, Any]:
        """Return the parameters of an instance to replay `actions` actions in, beside `is_open_query`."""
        return {"explore_steps": max(1, actions)}

    def task_params(self, actions: int, env_params: dict[str, Any]) -> dict[str, Any]:
        """Return what episodes of a synthetic task need beyond `env_params`, for a reference of `actions` actions."""
        return {}

    def tells(self, result: Result) -> bool:
        """Whether the environment reported the effect of the step's action."""
        return "refused" in result["info"] or "finished" in result["info"]

    def refusal(self, result: Result) -> str | None:
        """Return why a step was refused or failed, or None if it was carried out or the environment does not say."""
        refused = result["info"].get("refused")
        if not refused:
            return None
        return (
            refused if isinstance(refused, str) else "\n".join(str(message["content"]) for message in result["state"])
        )

    def fault(self, action: str, observation: str) -> tuple[str, str] | None:
        """Return the fault of an action by its observation: its kind (`malformed`, `wrong_argument`, `missing_call`,
        `refused`) and the environment's words; None if no fault is visible."""
        words = " ".join(observation.split())
        return ("refused", words) if words.lower().startswith(("err ", "error", "err:")) else None

    def finished(self, result: Result) -> bool:
        """Whether a step ended the episode as intended; if the environment does not say, whether it ended the
        episode."""
        return bool(result["is_terminated"] and result["info"].get("finished", True))

    def closing(self, answer: str | None) -> str | None:
        """Return the action that ends an episode with an answer, or None if there is none or it is unknown."""
        return None

    def answer_of(self, action: str) -> str | None:
        """Return the answer of an action whose text ends the episode ("" for an empty one), else None."""
        return None

    def action_of_call(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Return a native tool call as the text of an action, or None if the environment has no such action."""
        return tool_call(name, arguments)

    def signature(self, action: str) -> str:
        """Return the kind of an action, for the record of tried ones: the tools it calls, else the start of its
        text."""
        return ", ".join(_CALL.findall(action)) or shortened(action)

    def complete(self, actions: Sequence[str], answer: str | None) -> list[str]:
        """Return the actions up to the one that ends the episode; a missing one is added if it is known."""
        kept: list[str] = []
        for action in actions:
            if not action.strip():
                continue
            kept.append(action)
            if self.answer_of(action) is not None:
                return kept
        closing = self.closing(answer)
        return kept if closing is None else [*kept, closing]


class ToolCallFormat(PlainFormat):
    """Calls as `<tool_call>{...}</tool_call>`; a message without a call is the answer and ends the episode."""

    def closing(self, answer: str | None) -> str | None:
        if not answer:
            return "Done."
        return answer

    def answer_of(self, action: str) -> str | None:
        return None if "<tool_call>" in action else action

    def signature(self, action: str) -> str:
        return super().signature(action) if "<tool_call>" in action else "(answer)"


def tool_call(name: str, arguments: dict[str, Any]) -> str:
    """Return a call in the text form of the Qwen chat template."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def shortened(action: str) -> str:
    line = " ".join(action.split())
    return line if len(line) <= 60 else line[:57] + "..."

"""Action formats: the texts of an environment's actions, and what a step's result says of one.

What became of an action is said by the environment (`env_service.base.StepInfo`), so `PlainFormat` serves every
environment. What only a text can tell (which action ends an episode, how a native tool call is written) differs:
`PlainFormat` knows the common forms, and an environment that says more has a class `Format` in the module
`action_format` beside its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

Result = dict[str, Any]

_CALL = re.compile(r'<tool_call>\s*\{\s*"name"\s*:\s*"([^"]+)"')


class PlainFormat:
    """Actions of any environment; the base of formats of one's own. An action is the text of one assistant message.

    `executable`: whether a list of actions may be carried out again without a model. False where that would cost or
    harm. `exploration`: how many steps an explorer takes there (broadly, deeply) where the configuration does not say.
    """

    executable: ClassVar[bool] = True
    exploration: tuple[int, int] = (3, 12)

    def __init__(self, env_type: str) -> None:
        self.env_type = env_type

    def explore_params(self, steps: int) -> dict[str, Any]:
        """Return what an instance to explore for so many steps is created with, beside `is_open_query`."""
        return {"explore_steps": max(1, steps)}

    def replay_params(self, actions: int) -> dict[str, Any]:
        """Return what an instance for carrying out so many actions is created with, beside `is_open_query`."""
        return {"explore_steps": max(1, actions)}

    def task_params(self, actions: int, env_params: dict[str, Any]) -> dict[str, Any]:
        """Return what the episodes of a synthetic task need on top of `env_params`,
        for a reference of so many actions."""
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

    def fault(self, action: str, observation: str) -> tuple[str, str] | None:
        """Return what is wrong with an action by what it was answered: the kind (`malformed`, `wrong_argument`,
        `missing_call`, `refused`) and the environment's words; None where nothing is, or the text does not tell."""
        words = " ".join(observation.split())
        return ("refused", words) if words.lower().startswith(("err ", "error", "err:")) else None

    def finished(self, result: Result) -> bool:
        """Whether a step ended the episode as an agent should end it;
        the end of the episode where the environment does not say."""
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
        """Return what kind of action it is, for the record of what was tried:
        the tools it calls, else the beginning of its text."""
        return ", ".join(_CALL.findall(action)) or shortened(action)

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


class ToolCallFormat(PlainFormat):
    """Function calls as `<tool_call>{...}</tool_call>`; a message without a call is the answer and ends the episode."""

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
    """Return an action on one line of at most 60 characters."""
    line = " ".join(action.split())
    return line if len(line) <= 60 else line[:57] + "..."

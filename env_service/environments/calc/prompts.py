"""Prompts of the agent before its first call: as little as can be, since a seed policy pays for every token, or with
`verbose` the rules that a language model needs."""

from __future__ import annotations

from typing import Any

from env_service.base import Message
from env_service.environments.calc.actions import TOOL_NAME
from env_service.environments.calc.grammar import FAMILIES, OPERATORS

SYSTEM = "solve"
EXPLORE = "explore"

_RULES = (
    "You work out chains of digits and operators. The operators {operators} have nothing to do with arithmetic: each "
    "makes one digit of two, and only the tool calc knows which. `left 3 f 4 g 7` is worked out from the left, "
    "(3 f 4) g 7, and `right 3 f 4 g 7` from the right, 3 f (4 g 7). The answer is one digit."
)
_FORM = (
    "Each message holds one line and nothing else: `calc 3 f 4` asks for 3 f 4, `answer 9` ends the task with the "
    "answer 9."
)
_NATIVE = (
    "Call the tool for one operator at a time; a message `answer 9` without a call ends the task with the answer 9."
)
_EXPLORE = "You have no task. Find out what the operators do, then write `answer 0`."


def opening(question: str | None, *, verbose: bool, native: bool) -> list[Message]:
    """The two opening messages; the user's is the question and nothing else, or a call to explore if there is none."""
    system = SYSTEM
    if verbose:
        system = f"{_RULES.format(operators=', '.join(OPERATORS))} {_NATIVE if native else _FORM}"
    if question is None:
        question = _EXPLORE if verbose else EXPLORE
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def tool_schema() -> dict[str, Any]:
    """Return the calculator as an OpenAI-style tool."""
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    properties = {"a": digit, "op": {"type": "string", "enum": list(OPERATORS)}, "b": digit}
    return {
        "type": "function",
        "function": {
            "name": TOOL_NAME,
            "description": f"Work out `a op b`, one step of a chain of {' or '.join(FAMILIES)}; the answer is a digit.",
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": ["a", "op", "b"],
                "additionalProperties": False,
            },
        },
    }

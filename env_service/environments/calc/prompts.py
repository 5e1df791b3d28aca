"""Prompts of the agent before its first call: minimal for a seed policy, or with `verbose` the full rules for a
language model."""

from __future__ import annotations

from typing import Any

from env_service.base import Message
from env_service.environments.calc.actions import TOOL_NAME, WHAT_TO_CALL, WHAT_TO_WRITE
from env_service.environments.calc.grammar import FAMILIES, OPERATORS

SYSTEM = "solve"
EXPLORE = "explore"

_RULES = (
    "Work out the user's chain of digits and operators to one digit. The operators {operators} are no arithmetic: only "
    "the tool calc knows which digit each makes of two. `left 3 f 4 g 7` means (3 f 4) g 7 and `right 3 f 4 g 7` means "
    "3 f (4 g 7): ask for the pair in brackets, then put the result in its place and ask for the next pair."
)
_EXAMPLE = "calc 3 f 4"
_NATIVE_EXAMPLE = '{"a": 3, "op": "f", "b": 4}'
_ANSWER = "When one digit is left, reply with the word answer and the digit; never guess it."
_FORM = """{answer} Until then ask for one pair a reply, in one line like this:
{example}"""
_NATIVE = (
    "{answer} Until then make one call of calc a reply, with arguments like {example}, and write nothing else: the "
    "environment answers."
)
_EXPLORE = "You have no task. Find out what the operators do, then write `answer 0`."


def opening(question: str | None, *, verbose: bool, native: bool) -> list[Message]:
    """Return the two opening messages; the user's is only the question, or a call to explore."""
    system = SYSTEM
    if verbose:
        system = f"{_RULES.format(operators=', '.join(OPERATORS))}\n{_how(native)}"
    if question is None:
        question = _EXPLORE if verbose else EXPLORE
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def result(first: int, operator: str, second: int, value: int) -> str:
    return f"{first} {operator} {second} = {value}"


_FAULTS = {
    WHAT_TO_WRITE: "this is neither a call nor an answer",
    WHAT_TO_CALL: "this holds no call, and what calc answers is written by the environment alone",
    "no digit": "this is not a digit from 0 to 9",
    "no operator": f"this is not an operator of {', '.join(OPERATORS)}",
}


def refusal(reason: str, *, native: bool) -> str:
    return f"err {_FAULTS.get(reason, reason)}. {_how(native)}"


def _how(native: bool) -> str:
    form, example = (_NATIVE, _NATIVE_EXAMPLE) if native else (_FORM, _EXAMPLE)
    return form.format(answer=_ANSWER, example=example)


def tool_schema() -> dict[str, Any]:
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
            },
        },
    }

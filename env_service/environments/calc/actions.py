"""Actions of calc that an agent's message asks for: a call of the calculator, or the end with an answer.

What is neither becomes `Nothing`, whose text is the observation. Nothing raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from env_service.environments.calc.grammar import DIGITS, OPERATORS
from env_service.tool_calls import BadCall, ToolCall

TOOL_NAME = "calc"
_THINK = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the calculator."""

    first: int
    operator: str
    second: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer, a digit, which ends the episode."""

    text: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """Neither; `reason` is short, since a small policy reads it."""

    reason: str


Action = Call | Answer | Nothing
WHAT_TO_WRITE = "calc A OP B or answer A"


def parse(text: str) -> Action:
    """Read a message: `calc 3 f 4` or `answer 9`, and nothing else but a thought in <think> tags before it."""
    match _THINK.sub("", text).split():
        case ["calc", first, operator, second]:
            return _call(first, operator, second)
        case ["answer", answer]:
            return Answer(answer) if answer in DIGITS else Nothing("no digit")
        case _:
            return Nothing(WHAT_TO_WRITE)


def call_of(call: ToolCall | BadCall) -> Call | Nothing:
    """Read a native call of the tool; digits may be numbers or text."""
    if isinstance(call, BadCall):
        return Nothing(call.reason)
    if call.name != TOOL_NAME:
        return Nothing(f"there is no tool {call.name[:40]!r}, the only one is {TOOL_NAME}")
    if set(call.arguments) != {"a", "op", "b"}:
        return Nothing(f"{TOOL_NAME} takes a, op and b")
    first, operator, second = (
        "" if isinstance(value := call.arguments[key], bool) else str(value)[:20] for key in ("a", "op", "b")
    )
    return _call(first, operator, second)


def _call(first: str, operator: str, second: str) -> Call | Nothing:
    if first not in DIGITS or second not in DIGITS:
        return Nothing("no digit")
    if operator not in OPERATORS:
        return Nothing("no operator")
    return Call(int(first), operator, int(second))

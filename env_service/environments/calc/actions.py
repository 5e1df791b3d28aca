"""Actions of calc in an agent's message: a call of the calculator, or the answer. Nothing raises."""

from __future__ import annotations

import re
from dataclasses import dataclass

from env_service.environments.calc.grammar import DIGITS, OPERATORS
from env_service.tool_calls import BadCall, ToolCall

TOOL_NAME = "calc"
_THINK = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CalcCall:
    first: int
    operator: str
    second: int


@dataclass(frozen=True, slots=True)
class CalcAnswer:
    text: str


@dataclass(frozen=True, slots=True)
class CalcNoAction:
    reason: str


Action = CalcCall | CalcAnswer | CalcNoAction
WHAT_TO_WRITE = "calc A OP B or answer A"
WHAT_TO_CALL = "call the tool calc, or write answer A"


def parse(text: str) -> Action:
    """Read a message: `calc 3 f 4` or `answer 9`, alone or after a thought in <think> tags."""
    match _THINK.sub("", text).split():
        case ["calc", first, operator, second]:
            return _call(first, operator, second)
        case ["answer", answer]:
            return CalcAnswer(answer) if answer in DIGITS else CalcNoAction("no digit")
        case _:
            return CalcNoAction(WHAT_TO_WRITE)


def call_of(call: ToolCall | BadCall) -> CalcCall | CalcNoAction:
    """Read a native call of the tool; digits may be numbers or text."""
    if isinstance(call, BadCall):
        return CalcNoAction(call.reason)
    if call.name != TOOL_NAME:
        return CalcNoAction(f"there is no tool {call.name[:40]!r}, the only one is {TOOL_NAME}")
    if set(call.arguments) != {"a", "op", "b"}:
        return CalcNoAction(f"{TOOL_NAME} takes a, op and b")
    first, operator, second = (
        "" if isinstance(value := call.arguments[key], bool) else str(value)[:20] for key in ("a", "op", "b")
    )
    return _call(first, operator, second)


def _call(first: str, operator: str, second: str) -> CalcCall | CalcNoAction:
    if first not in DIGITS or second not in DIGITS:
        return CalcNoAction("no digit")
    if operator not in OPERATORS:
        return CalcNoAction("no operator")
    return CalcCall(int(first), operator, int(second))

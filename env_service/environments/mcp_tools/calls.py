"""Reading tool calls out of an assistant message, and the final answer out of one without.

Calls come as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, several if need be, or as structured tool
calls. A call that cannot be read is a `BadCall` with the reason, so that the agent is told; nothing is dropped and
nothing raises.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from env_service.base import Message

_TOOL_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_ANSWER_LINE = re.compile(r"^[ \t*_#>-]*(?:final[ \t]+)?answer[ \t*_]*:(.*)$", re.IGNORECASE | re.MULTILINE)
_FORM = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'


@dataclass(frozen=True)
class Call:
    """One tool call."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class BadCall:
    """Something that was meant as a call."""

    reason: str


def _loaded(text: str) -> tuple[Any, str]:
    """Return the JSON value, or why there is none (model text may also be too deep or hold numbers that are too
    long)."""
    try:
        return json.loads(text, strict=False), ""
    except (ValueError, RecursionError) as error:
        return None, str(error)[:200]


def _call(name: Any, arguments: Any) -> Call | BadCall:
    if not isinstance(name, str) or not name:
        return BadCall(f"The call has no `name`; write {_FORM}")
    if isinstance(arguments, str):
        arguments, wrong = _loaded(arguments) if arguments.strip() else ({}, "")
        if wrong:
            return BadCall(f"The arguments of {name[:80]!r} are no valid JSON ({wrong}).")
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        return BadCall(f"The arguments of {name[:80]!r} must be a JSON object.")
    return Call(name, arguments)


def _structured(call: Any) -> Call | BadCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return BadCall("The tool call has no `function`.")
    return _call(function.get("name"), function.get("arguments"))


def _tagged(body: str) -> Call | BadCall:
    value, wrong = _loaded(body)
    if wrong:
        return BadCall(f"The call is no valid JSON ({wrong}); write {_FORM}")
    if not isinstance(value, dict):
        return BadCall(f"The call is no JSON object; write {_FORM}")
    return _call(value.get("name"), value.get("arguments"))


def visible_text(message: Message) -> str:
    """Return the message's text after its thoughts."""
    return (message["content"] or "").rsplit("</think>", 1)[-1]


def parse(message: Message) -> list[Call | BadCall]:
    """Return the calls of a message in their order; none means that the message is the final one."""
    structured = message.get("tool_calls")
    if structured:
        return [_structured(call) for call in structured]
    return [_tagged(body) for body in _TOOL_CALL.findall(visible_text(message))]


def answer_line(text: str) -> str | None:
    """Return what stands in the last line `answer: ...` of a message, None if it has no such line."""
    lines = [line.strip(" \t*_") for line in _ANSWER_LINE.findall(text)]
    return next((line for line in reversed(lines) if line), None)


def final_answer(text: str) -> str:
    """Return the last line `answer: ...` of the final message, else the whole message."""
    return answer_line(text) or text.strip()

"""The calls of an assistant message, and a check for calls that would compute for minutes."""

from __future__ import annotations

import re
from typing import Any

from env_service.base import Message
from env_service.tool_calls import BadCall, ToolCall, after_thoughts, structured_calls, tagged_calls

MOST_CALLS = 64
LONGEST_EXPRESSION = 1000
_TAG = "<tool_call>"
_SMALL_POWER = re.compile(r"[^*]*(?:\*(?!\*)[^*]*)*\*\*\s*-?\d{1,3}(?![\d.])(?:[^*]|\*(?!\*))*")


def read_calls(action: Message, *, native: bool) -> tuple[str, list[ToolCall | BadCall]]:
    """Return a message's text without thoughts and calls, and its calls; more than 64 are all bad."""
    text = after_thoughts(action.get("content") or "")
    calls = structured_calls(action)
    if not native and not calls and _TAG in text:
        calls = tagged_calls(text)
        text = text.partition(_TAG)[0]
    if len(calls) > MOST_CALLS:
        reason = f"{len(calls)} calls in one message are too many; make at most {MOST_CALLS}"
        calls = [BadCall(reason, call.name, call.id) for call in calls]
    return text.strip(), calls


def too_hard(name: str, arguments: dict[str, Any]) -> str | None:
    """Return the refusal of an expensive call, or None: the package's `calculate` evaluates powers of powers, and texts
    of any length."""
    expression = arguments.get("expression")
    if name != "calculate" or not isinstance(expression, str):
        return None
    if len(expression) > LONGEST_EXPRESSION:
        return f"Error: the expression has {len(expression)} characters; at most {LONGEST_EXPRESSION} are computed"
    if "**" in expression and not _SMALL_POWER.fullmatch(expression):
        return "Error: only one power with an exponent of at most three digits is computed"
    return None

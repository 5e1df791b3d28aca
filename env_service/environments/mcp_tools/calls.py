"""Reading tool calls out of an assistant message, and the final answer out of one without.

Calls come as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, several if need be, or as structured tool
calls.
"""

from __future__ import annotations

import re

from env_service.base import Message
from env_service.tool_calls import BadCall, ToolCall, after_thoughts, structured_calls, tagged_calls

_ANSWER_LINE = re.compile(r"^[ \t*_#>-]*(?:final[ \t]+)?answer[ \t*_]*:(.*)$", re.IGNORECASE | re.MULTILINE)


def visible_text(message: Message) -> str:
    return after_thoughts(message.get("content") or "")


def parse(message: Message) -> list[ToolCall | BadCall]:
    """Return the calls of a message in their order; none means that the message is the final one."""
    return structured_calls(message) or tagged_calls(visible_text(message))


def answer_line(text: str) -> str | None:
    """Return what stands in the last line `answer: ...` of a message, None if it has no such line."""
    lines = [line.strip(" \t*_") for line in _ANSWER_LINE.findall(text)]
    return next((line for line in reversed(lines) if line), None)


def final_answer(text: str) -> str:
    """Return the last line `answer: ...` of the final message, else the whole message."""
    return answer_line(text) or text.strip()

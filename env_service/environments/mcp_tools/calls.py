"""Tool calls of an assistant message, and the final answer of a message without calls.

Calls are `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one or more, or structured tool calls.
"""

from __future__ import annotations

import re

from env_service.base import Message
from env_service.tool_calls import BadCall, ToolCall, after_thoughts, structured_calls, tagged_calls

_ANSWER_LINE = re.compile(r"^[ \t*_#>-]*(?:final[ \t]+)?answer[ \t*_]*:(.*)$", re.IGNORECASE | re.MULTILINE)


def visible_text(message: Message) -> str:
    return after_thoughts(message.get("content") or "")


def parse(message: Message) -> list[ToolCall | BadCall]:
    """Return a message's calls in order; empty for the final message."""
    return structured_calls(message) or tagged_calls(visible_text(message))


def answer_line(text: str) -> str | None:
    """Return the text of a message's last line `answer: ...`, or None."""
    lines = [line.strip(" \t*_") for line in _ANSWER_LINE.findall(text)]
    return next((line for line in reversed(lines) if line), None)


def final_answer(text: str) -> str:
    return answer_line(text) or text.strip()

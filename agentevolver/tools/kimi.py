"""Calls of Kimi K2: a name with its place, and JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentevolver.tools.schema import ToolCall, ToolSpec
from agentevolver.tools.tagged import BadCall, TaggedFormat, read_arguments

_ARGUMENTS = "<|tool_call_argument_begin|>"
_NAME = re.compile(rf"\s*(?:functions\.)?([^\s<:]+)(?::\d+)?\s*{re.escape(_ARGUMENTS)}\s*")


class KimiFormat(TaggedFormat):
    """`<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`, once for each call."""

    name = "kimi"
    opening = "<|tool_call_begin|>"
    closing = "<|tool_call_end|>"
    wrappers = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    inner = (_ARGUMENTS,)

    def read_calls(self, text: str, at: int, limit: int, tools: Sequence[ToolSpec]) -> tuple[list[ToolCall], int]:
        """Return the call after an opening tag, and the place after it.

        Raises:
            BadCall: it is broken.
        """
        named = _NAME.match(text, at)
        if named is None:
            raise BadCall(f"functions.NAME:PLACE{_ARGUMENTS} was expected at {text[at : at + 30]!r}")
        arguments, end = read_arguments(text, named.end())
        return [ToolCall(named[1], arguments)], end

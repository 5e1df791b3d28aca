"""Calls of DeepSeek V3 and R1 (a name, and JSON in a code block), and of V3.1 (a name, and JSON)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentevolver.tools.json_text import skip_space
from agentevolver.tools.schema import ToolCall, ToolSpec
from agentevolver.tools.tagged import BadCall, TaggedFormat, read_arguments


def _token(name: str) -> str:
    return f"<\uff5c{name.replace('_', chr(0x2581))}\uff5c>"


_SEPARATOR = _token("tool_sep")
_NAME = re.compile(
    rf"\s*(?:function\s*{re.escape(_SEPARATOR)})?\s*([^\s<{{}}]+)\s*(?:{re.escape(_SEPARATOR)})?\s*(```json\b)?\s*"
)


class DeepSeekFormat(TaggedFormat):
    """Each call between the tokens tool_call_begin and tool_call_end, all of them between tool_calls_begin and
    tool_calls_end; their spelling is DeepSeek's."""

    name = "deepseek"
    opening = _token("tool_call_begin")
    closing = _token("tool_call_end")
    wrappers = (_token("tool_calls_begin"), _token("tool_calls_end"))
    inner = (_SEPARATOR,)

    def read_calls(self, text: str, at: int, limit: int, tools: Sequence[ToolSpec]) -> tuple[list[ToolCall], int]:
        """Return the call after an opening tag, and the place after it.

        Raises:
            BadCall: it is broken.
        """
        named = _NAME.match(text, at)
        if named is None:
            raise BadCall(f"a tool's name was expected at {text[at : at + 30]!r}")
        arguments, end = read_arguments(text, named.end())
        if named[2]:
            end = skip_space(text, end)
            if not text.startswith("```", end):
                raise BadCall(f"``` was expected at {text[end : end + 30]!r}")
            end += 3
        return [ToolCall(named[1], arguments)], end

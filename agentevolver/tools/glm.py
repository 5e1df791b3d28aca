"""Calls of GLM-4.5 and later: a name, and pairs of key and value as tags, the values as bare text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentevolver.tools.schema import ToolCall, ToolSpec, find_tool
from agentevolver.tools.tagged import BadCall, TaggedFormat
from agentevolver.tools.values import object_text, value_text

_NAME = re.compile(r"\s*([^\s<{][^\s<]*)\s*")
_KEY = re.compile(r"\s*<arg_key>([^\n<]*)</arg_key>\s*<arg_value>")
# A value may spell the tag: what ends it is followed by the next key, or the call's end.
_END_VALUE = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|\Z))")
_BLANK = re.compile(r"\s*\Z")


class GlmFormat(TaggedFormat):
    """`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value></tool_call>`, once for each call."""

    name = "glm"
    stops = ("<|observation|>",)

    def read_calls(self, text: str, at: int, limit: int, tools: Sequence[ToolSpec]) -> tuple[list[ToolCall], int]:
        """Return the call between two tags, and the place after it; values by the schema of the tool.

        Raises:
            BadCall: it is broken.
        """
        named = _NAME.match(text, at, limit)
        if named is None:
            raise BadCall(f"a tool's name was expected at {text[at : min(limit, at + 30)].strip()!r}")
        tool = find_tool(tools, named[1])
        members: dict[str, str] = {}
        at = named.end()
        while pair := _KEY.match(text, at, limit):
            key = pair[1].strip()
            end = _END_VALUE.search(text, pair.end(), limit)
            if end is None:
                raise BadCall(f"</arg_value> was expected after the value of {key[:60]!r}")
            if key in members:
                raise BadCall(f"the argument {key[:60]!r} stands twice")
            members[key] = value_text(text[pair.end() : end.start()], tool, key)
            at = end.end()
        if not _BLANK.match(text, at, limit):
            raise BadCall(
                f"<arg_key>KEY</arg_key><arg_value>value</arg_value> was expected at {text[at : at + 30].strip()!r}"
            )
        return [ToolCall(named[1], object_text(members))], limit

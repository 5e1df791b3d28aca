"""Calls as tags around bare values: Qwen3-Coder's, which Qwen3.5 and Nemotron 3 write too, Seed-OSS's and MiniMax's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentevolver.tools.schema import ToolCall, ToolSpec, find_tool
from agentevolver.tools.tagged import BadCall, TaggedFormat
from agentevolver.tools.values import object_text, value_text

_BLANK = re.compile(r"\s*\Z")


class Qwen3CoderFormat(TaggedFormat):
    """`<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`, once for each call.

    A value may spell the tag that ends it: what ends it is followed by the next parameter, or the function's end.
    """

    name = "qwen3_coder"
    function = re.compile(r"\s*<function=([^>\n]+)>")
    parameter = re.compile(r"\s*<parameter=([^>\n]+)>\n?")
    parameter_end = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>))")
    function_end = re.compile(r"\s*</function>")

    def read_calls(self, text: str, at: int, limit: int, tools: Sequence[ToolSpec]) -> tuple[list[ToolCall], int]:
        """Return the calls between two tags, and the place after them; values by the schema of each tool.

        Raises:
            BadCall: there is none, or a broken one.
        """
        calls: list[ToolCall] = []
        while not calls or not _BLANK.match(text, at, limit):
            function = self.function.match(text, at, limit)
            if function is None:
                raise BadCall(f"a function's tag was expected at {text[at : min(limit, at + 30)].strip()!r}")
            members, at = self._members(text, function.end(), limit, find_tool(tools, function[1].strip()))
            closed = self.function_end.match(text, at, limit)
            if closed is None:
                near = text[at : min(limit, at + 30)].strip()
                raise BadCall(f"a parameter's tag, or the function's end, was expected at {near!r}")
            calls.append(ToolCall(function[1].strip(), object_text(members)))
            at = closed.end()
        return calls, limit

    def _members(self, text: str, at: int, limit: int, tool: ToolSpec | None) -> tuple[dict[str, str], int]:
        members: dict[str, str] = {}
        while parameter := self.parameter.match(text, at, limit):
            key = parameter[1].strip()
            end = self.parameter_end.search(text, parameter.end(), limit)
            if end is None:
                raise BadCall(f"</parameter> was expected after the value of {key[:60]!r}")
            if key in members:
                raise BadCall(f"the parameter {key[:60]!r} stands twice")
            members[key] = value_text(text[parameter.end() : end.start()], tool, key)
            at = end.end()
        return members, at


class SeedFormat(Qwen3CoderFormat):
    """Qwen3-Coder's within tags of Seed-OSS, without line breaks around a value."""

    name = "seed"
    opening = "<seed:tool_call>"
    closing = "</seed:tool_call>"
    thinks = ("<seed:think>",)
    thought_ends = ("</seed:think>",)
    parameter = re.compile(r"\s*<parameter=([^>\n]+)>")
    parameter_end = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>))")


class MiniMaxFormat(Qwen3CoderFormat):
    """`<invoke name="NAME"><parameter name="KEY">value</parameter></invoke>`, all of a reply's in one pair of tags."""

    name = "minimax"
    opening = "<minimax:tool_call>"
    closing = "</minimax:tool_call>"
    function = re.compile(r'\s*<invoke name="([^"\n]+)">')
    parameter = re.compile(r'\s*<parameter name="([^"\n]+)">')
    parameter_end = re.compile(r"</parameter>(?=\s*(?:<parameter name=|</invoke>))")
    function_end = re.compile(r"\s*</invoke>")

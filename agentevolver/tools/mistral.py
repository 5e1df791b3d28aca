"""Mistral's calls: after `[TOOL_CALLS]` a JSON list of calls, or from 2025 on a name and its arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentevolver.tools.json_text import BadJson, skip_space
from agentevolver.tools.reply import END_THINK, THINK
from agentevolver.tools.schema import ToolCall, ToolSpec
from agentevolver.tools.tagged import BadCall, TaggedFormat, read_arguments, read_json_call

_NAME = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\][^\[\]{}]*)?(?:\[ARGS\])?\s*")


class MistralFormat(TaggedFormat):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, and `[TOOL_CALLS]NAME[ARGS]{...}` once for each call."""

    name = "mistral"
    opening = "[TOOL_CALLS]"
    closing = None
    inner = ("[ARGS]", "[CALL_ID]")
    thinks = ("[THINK]", THINK)
    thought_ends = ("[/THINK]", END_THINK)

    def read_calls(self, text: str, at: int, limit: int, tools: Sequence[ToolSpec]) -> tuple[list[ToolCall], int]:
        """Return the calls after the tag, and the place after them.

        Raises:
            BadCall, BadJson: there is none, or a broken one.
        """
        at = skip_space(text, at)
        if text.startswith("[", at) and not text.startswith(self.inner, at):
            return _listed(text, at + 1)
        named = _NAME.match(text, at)
        if named is None:
            raise BadCall(f"a list of calls or a tool's name was expected at {text[at : at + 30]!r}")
        arguments, end = read_arguments(text, named.end())
        return [ToolCall(named[1], arguments)], end


def _listed(text: str, at: int) -> tuple[list[ToolCall], int]:
    calls = []
    while True:
        try:
            call, at = read_json_call(text, skip_space(text, at))
        except BadJson as error:
            raise BadJson(f"its JSON is broken: {error}") from None
        calls.append(call)
        at = skip_space(text, at)
        if text.startswith("]", at):
            return calls, at + 1
        if not text.startswith(",", at):
            raise BadCall(f"',' or ']' was expected at {text[at : at + 30]!r}")
        at += 1

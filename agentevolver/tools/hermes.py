"""Hermes' calls, of Qwen2.5, Qwen3 and others: a JSON object with `name` and `arguments` between tags."""

from __future__ import annotations

from collections.abc import Sequence

from agentevolver.tools.json_text import BadJson, skip_space
from agentevolver.tools.schema import ToolCall, ToolSpec
from agentevolver.tools.tagged import TaggedFormat, read_json_call


class HermesFormat(TaggedFormat):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once for each call."""

    name = "hermes"

    def read_calls(self, text: str, at: int, limit: int, tools: Sequence[ToolSpec]) -> tuple[list[ToolCall], int]:
        """Return the call after an opening tag, and the place after it. Its JSON may hold the tags themselves, so that
        no tag limits it.

        Raises:
            BadCall, BadJson: it is broken.
        """
        try:
            call, end = read_json_call(text, skip_space(text, at))
        except BadJson as error:
            raise BadJson(f"its JSON is broken: {error}") from None
        return [call], end

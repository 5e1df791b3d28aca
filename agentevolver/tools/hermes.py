"""Hermes' calls, of Qwen2.5, Qwen3 and others: a JSON object with `name` and `arguments` between tags."""

from __future__ import annotations

from collections.abc import Sequence

from agentevolver.tools.json_text import BadJson, read_object, skip_space
from agentevolver.tools.schema import ToolCall, ToolSpec
from agentevolver.tools.tagged import BadCall, TaggedFormat


def read_json_call(text: str, at: int, keys: Sequence[str] = ("arguments",)) -> tuple[ToolCall, int]:
    """Return the call that is a JSON object at a place of a text, and the place after it. The arguments stand under one
    of some keys, and stay as written.

    Raises:
        BadJson: it is no JSON object.
        BadCall: its name is no text, or its arguments are no object.
    """
    members, end = read_object(text, at)
    name = members.get("name")
    if name is None:
        raise BadCall('it has no "name"')
    if not isinstance(name.value, str) or not name.value.strip():
        raise BadCall('its "name" is no name')
    given = [key for key in keys if key in members]
    if len(given) != 1:
        wanted = " or ".join(f'"{key}"' for key in keys)
        raise BadCall(f"it has {'more than one of' if given else 'no'} {wanted}")
    arguments = members[given[0]]
    if not isinstance(arguments.value, dict):
        raise BadCall(f'its "{given[0]}" must be a JSON object')
    return ToolCall(name.value, arguments.text), end


class HermesFormat(TaggedFormat):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once for each call."""

    name = "hermes"

    def read_call(self, text: str, at: int, tools: Sequence[ToolSpec]) -> tuple[ToolCall, int]:
        """Return the call whose opening tag ends at a place of a text, and the place after it.

        Raises:
            BadCall, BadJson: it is broken.
        """
        try:
            return read_json_call(text, skip_space(text, at))
        except BadJson as error:
            raise BadJson(f"its JSON is broken: {error}") from None

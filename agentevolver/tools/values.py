"""Arguments that a format writes as bare text: which JSON value a text is, by the schema of the tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentevolver.tools.json_text import BadJson, read_value
from agentevolver.tools.schema import ToolSpec

# Chat templates write these as Jinja spells Python's values.
_PYTHONS = {"True": "true", "False": "false", "None": "null"}


def value_text(text: str, tool: ToolSpec | None, key: str) -> str:
    """Return the JSON text of an argument that a model wrote as bare text.

    Such a format writes the number 5 and the text "5" alike: the value is what the argument's schema takes, JSON if it
    takes both. Numbers stay as written.
    """
    schema = tool.argument_schema(key) if tool is not None else {}
    as_text = json.dumps(text, ensure_ascii=False)
    if schema.get("type") == "string":
        return as_text
    literal = text.strip()
    literal = _PYTHONS.get(literal, literal)
    try:
        value, end = read_value(literal, 0)
        if end < len(literal):
            return as_text
    except BadJson:
        return as_text
    if tool is None or tool.takes(key, value):
        return literal
    if tool.takes(key, text):
        return as_text
    # Neither fits: what is wrong with the value is to be said, not with its type.
    return literal if _is_of_type(value, schema) else as_text


def _is_of_type(value: Any, schema: Mapping[str, Any]) -> bool:
    return ToolSpec("", parameters={"properties": {"x": {"type": schema.get("type", "string")}}}).takes("x", value)


def object_text(members: Mapping[str, str]) -> str:
    """Return the JSON text of an object, of JSON texts by key."""
    return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {text}" for key, text in members.items()) + "}"

"""Prompts of the agent: the tool prompt (the wording of the Qwen chat template),
added tools, results and the end marker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from env_service.environments.bfcl.package import ToolDoc
from env_service.tool_calls import HOW_TO_CALL

COMPLETED = "[CONVERSATION_COMPLETED]"
"""The observation that ends an episode (AgentEvolver's marker)."""

_SYSTEM = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
{tools}

{how}
A call of these looks like this:
{example}

# Conversation

The results of your calls come back within <tool_response></tool_response> tags, which you never write yourself. """
_TURNS = """Keep calling until the user's request is fulfilled, then answer without a call: that ends your turn and \
the user speaks next. If no function fits, or a required value is missing, answer without a call and say so. When a \
later message brings more functions, you may use them from then on."""
_MANY = 99
_NATIVE_SYSTEM = "Call the functions, for example {example}. Their results are never yours to write. "

_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def system_prompt(tools: Sequence[ToolDoc], *, native: bool) -> str:
    """Return the system message; native tools are left to the chat template."""
    example = example_call(tools, native=native)
    if native:
        return _NATIVE_SYSTEM.format(example=example) + _TURNS
    return _SYSTEM.format(tools=_tools_block(tools), how=HOW_TO_CALL, example=example) + _TURNS


def example_call(tools: Sequence[ToolDoc], *, native: bool) -> str:
    doc = min(tools, key=lambda doc: len(doc["parameters"].get("required", ())) or _MANY)
    parameters = _json_schema(doc["parameters"])
    arguments = {name: _value(name, parameters["properties"][name]) for name in parameters.get("required", ())}
    if native:
        return f"{doc['name']} with the arguments {json.dumps(arguments)}"
    return f"<tool_call>\n{json.dumps({'name': doc['name'], 'arguments': arguments})}\n</tool_call>"


def _value(name: str, schema: Mapping[str, Any]) -> Any:
    values = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
    return schema["enum"][0] if schema.get("enum") else values.get(schema.get("type", ""), name)


def added_functions(tools: Iterable[ToolDoc], sentence: str) -> str:
    return f"{_tools_block(tools)}\n\n{sentence}"


def open_request(tools: Sequence[ToolDoc]) -> str:
    return (
        f"There is no fixed request. The {len(tools)} functions above work on a running system. Find out what they do "
        "and what state the "
        "system is in. Answer without a call when you are done."
    )


def malformed_result(reason: str, example: str) -> str:
    return f"Malformed tool call: {reason}. Nothing was executed for it. A right call looks like this:\n{example}"


def tool_schema(doc: ToolDoc) -> dict[str, Any]:
    """Convert a function's document of the package to a tool schema, without its `response`."""
    function = {
        "name": doc["name"],
        "description": doc["description"].strip(),
        "parameters": _json_schema(doc["parameters"]),
    }
    return {"type": "function", "function": function}


def native_schema(doc: ToolDoc) -> dict[str, Any]:
    schema = tool_schema(doc)
    if doc["name"] == "close_ticket":
        # The reference of four tasks closes "ticket_001", and is graded by the error that this gives.
        schema["function"]["parameters"]["properties"]["ticket_id"]["type"] = ["integer", "string"]
    return schema


def _tools_block(tools: Iterable[ToolDoc]) -> str:
    lines = "\n".join(json.dumps(tool_schema(doc), ensure_ascii=False, separators=(", ", ": ")) for doc in tools)
    return f"<tools>\n{lines}\n</tools>"


def _json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the package's type names. Only places for schemas are visited, so a property named `type` stays."""
    result = dict(schema)
    if isinstance(kind := result.get("type"), str):
        result["type"] = _TYPES.get(kind, kind)
    if isinstance(properties := result.get("properties"), Mapping):
        result["properties"] = {name: _json_schema(value) for name, value in properties.items()}
    for key in ("items", "additionalProperties"):
        if isinstance(nested := result.get(key), Mapping):
            result[key] = _json_schema(nested)
    return result

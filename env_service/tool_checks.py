"""Checks of native tools (`BaseEnv.native_tools`): the list, an answer for each call, and malformed calls.

A class without native tools passes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from env_service.contract import NO_NATIVE_TOOLS, shorten
from env_service.probing import ODD_TEXTS, Broken, Failed, ProbeRefused, ProbeSubject, episode, expect, say

NATIVE = {"native_tools": True}
NO_TOOL = "no_such_tool_7f3a"


def offers_its_tools(subject: ProbeSubject) -> None:
    """With native_tools, info.tools of an opening lists tools with valid JSON schemas, and no message explains how to
    write a call."""
    for params in (NATIVE, {**NATIVE, "is_open_query": True}):
        with _native_episode(subject, params) as (_, state):
            if state is None:
                return
            tools = state["info"]["tools"]
            expect(bool(tools), "the list is empty")
            for function in (tool["function"] for tool in tools):
                schema = function.get("parameters", {})
                try:
                    Draft202012Validator.check_schema(schema)
                except SchemaError as error:
                    raise Broken(
                        f"the parameters of {function['name']!r} are no JSON schema: {error.message}"
                    ) from error
                expect(
                    schema.get("type", "object") == "object",
                    f"the parameters of {function['name']!r} are no object but {shorten(schema)}",
                )
            for message in state["state"]:
                expect(
                    not any(tag in message["content"] for tag in ("<tool_call>", "<tools>")),
                    f"it says how to write a call: {shorten(message['content'], 400)}",
                )


def answers_each_call(subject: ProbeSubject) -> None:
    """With native_tools, each call of a message is answered, in order, by a message of the role tool with the call's id
    and name; content may be null."""

    def every_tool(functions: list[dict[str, Any]]) -> list[list[tuple[str, str]]]:
        calls = [(tool["name"], json.dumps(least_value(tool.get("parameters", {})))) for tool in functions]
        return [*([call] for call in calls), [calls[0], (NO_TOOL, "{}"), calls[-1]]]

    _call_all(subject, every_tool)


def bears_any_call(subject: ProbeSubject) -> None:
    """With native_tools, a call of no tool, broken arguments and a message without a call get an observation, never an
    exception."""
    odd = ("{", "", "[]", "null", "{}", '{"no_such_argument": 1}', '{"a": NaN}', '{"a": "\\ud800"}', "[" * 20_000)

    def odd_calls(functions: list[dict[str, Any]]) -> list[list[tuple[str, str]]]:
        return [[(NO_TOOL, "{}")], *([(functions[0]["name"], arguments)] for arguments in odd), [], []]

    _call_all(subject, odd_calls)


def least_value(schema: Any) -> Any:
    """Return a small value that fits a JSON schema: types, enums, bounds and required keys."""
    if not isinstance(schema, dict):
        return {}
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return least_value(schema[key][0])
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: least_value(properties.get(name, {"type": "string"})) for name in schema.get("required", ())}
    if kind == "array":
        return [least_value(schema.get("items", {"type": "string"}))] * schema.get("minItems", 0)
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return {"string": "x" * max(1, schema.get("minLength", 1)), "boolean": False}.get(str(kind))


@contextlib.contextmanager
def _native_episode(subject: ProbeSubject, params: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Open an episode with native tools; the state is None if the class has none."""
    with contextlib.ExitStack() as stack:
        try:
            opened: tuple[str, dict[str, Any] | None] = stack.enter_context(episode(subject, params=params))
        except ProbeRefused as error:
            if NO_NATIVE_TOOLS not in str(error):
                raise
            opened = "", None
        yield opened


def _call_all(subject: ProbeSubject, calls_of: Callable[[list[dict[str, Any]]], list[list[tuple[str, str]]]]) -> None:
    """Send messages with the calls (name, JSON text) that `calls_of` makes of the tools, and check the answers. A new
    episode begins whenever one ends."""
    waiting: list[dict[str, Any]] | None = None
    while waiting is None or waiting:
        with _native_episode(subject, NATIVE) as (instance_id, state):
            if state is None or not state["info"]["tools"]:
                return
            if waiting is None:
                messages = calls_of([tool["function"] for tool in state["info"]["tools"]])
                waiting = [_calling(calls, number) for number, calls in enumerate(messages)]
            is_over = False
            while waiting and not is_over:
                action = waiting.pop(0)
                shown = shorten([call["function"] for call in action.get("tool_calls", [])])
                try:
                    result = subject.probe.step(instance_id, action)
                except (ProbeRefused, Failed) as error:
                    raise Broken(f"the calls {shown} raised: {error}") from error
                is_over = result["is_terminated"]
                expected = [(call["id"], call["function"]["name"]) for call in action.get("tool_calls", [])]
                answers = [m for m in result["state"] if m["role"] == "tool"]
                expect(
                    [(m.get("tool_call_id"), m.get("name")) for m in answers] == expected
                    and result["state"][: len(answers)] == answers,
                    f"the calls {shown} with the ids {[name for name, _ in expected]} were answered by "
                    f"{shorten(result['state'], 400)}",
                )
                expect(bool(result["state"]) or is_over, "the agent gets no observation although the episode goes on")


def _calling(calls: list[tuple[str, str]], number: int) -> dict[str, Any]:
    if not calls:
        return say(ODD_TEXTS[number % len(ODD_TEXTS)])
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    named = [
        {"id": f"call_{number}_{place}", "type": "function", "function": function}
        for place, function in enumerate(functions)
    ]
    return {"role": "assistant", "content": None, "tool_calls": named}

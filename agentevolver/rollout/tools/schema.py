"""Tools (`ToolSpec`), their calls (`ParsedCall`), and the interface of formats that read calls."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

_SHOWN = 8  # values of an enum in a tool's usage


@dataclass(frozen=True)
class ToolSpec:
    """A tool: name, description, and the JSON schema of its arguments (an object)."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    @classmethod
    def of_openai(cls, tool: Mapping[str, Any]) -> ToolSpec:
        """Read a tool in OpenAI's form. Raises ValueError if it is no named function, or its schema is invalid."""
        function = tool.get("function") if tool.get("type", "function") == "function" else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            raise ValueError(f"not a tool: {json.dumps(tool, default=str)[:200]}; expected a function with a name")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        try:
            Draft202012Validator.check_schema(parameters)
            _check_references(parameters)
        except (SchemaError, Unresolvable, TypeError, RecursionError) as error:
            reason = error.message if isinstance(error, SchemaError) else str(error)
            raise ValueError(f"the parameters of tool {function['name']!r} are no JSON schema: {reason}") from error
        return cls(function["name"], str(function.get("description") or ""), parameters)

    def to_openai(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    @cached_property
    def usage(self) -> str:
        """The tool's arguments in one line, shown to an agent whose call had wrong ones."""
        required = self.parameters.get("required", ())
        taken = [
            f"{name} ({_kind(schema)}{'' if name in required else ', optional'})"
            for name, schema in (self.parameters.get("properties") or {}).items()
        ]
        return f"{self.name} takes {', '.join(taken) or 'no arguments'}"

    @cached_property
    def example(self) -> str:
        """Example arguments as JSON text: each required one, with a value of its type."""
        properties = self.parameters.get("properties") or {}
        required = self.parameters.get("required", ())
        return json.dumps({name: _value(name, properties.get(name)) for name in required}, ensure_ascii=False)

    @cached_property
    def _validator(self) -> Draft202012Validator:
        return Draft202012Validator(self.parameters, registry=Registry())  # fetches no remote schema

    def problem(self, arguments: Any) -> str | None:
        """Return what is wrong with the arguments and where, or None if they fit the schema."""
        if not isinstance(arguments, dict):
            return "the arguments must be a JSON object"
        try:
            error = best_match(self._validator.iter_errors(arguments))
        except RecursionError:
            return "the arguments are nested too deeply"
        if error is None:
            return None
        place = error.json_path.removeprefix("$").removeprefix(".")
        return f"{place}: {error.message}" if place else error.message


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call as the model wrote it: `arguments` is JSON text, which may be broken."""

    name: str
    arguments: str

    def decoded(self) -> Any:
        """Return the arguments as data. Raises ValueError if they are not JSON."""
        try:
            return json.loads(self.arguments) if self.arguments.strip() else {}
        except RecursionError as error:
            raise ValueError("nested too deeply") from error

    def to_openai(self, call_id: str) -> dict[str, Any]:
        return {
            "id": call_id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed reply: text without calls, calls in order, and a sentence for the agent about each broken call."""

    content: str
    calls: tuple[ParsedCall, ...] = ()
    problems: tuple[str, ...] = ()


class ToolFormat(ABC):
    """Reads calls out of sampled ids. Stateless: one object serves all episodes of a process."""

    name: str

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The format's tokens that end a reply of calls, beside the tokenizer's eos."""
        return ()

    @abstractmethod
    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec]) -> Parsed:
        """Return a reply's text, calls and problems. Never raises, whatever the model wrote."""


def _value(name: str, schema: Any) -> Any:
    schema = schema if isinstance(schema, Mapping) else {}
    kinds = {"integer": schema.get("minimum", 1), "number": schema.get("minimum", 1), "boolean": True}
    known = {**kinds, "array": [], "object": {}}
    kind = schema.get("type")
    return schema["enum"][0] if schema.get("enum") else known.get(kind, name) if isinstance(kind, str) else name


def _kind(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "anything"
    if schema.get("enum"):
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"][:_SHOWN])
    return json.dumps(schema.get("type", "anything")).replace('"', "")


def _check_references(parameters: Any) -> None:
    """Raise Unresolvable for a `$ref` outside of the schema, TypeError if the schema is no object."""
    if not isinstance(parameters, Mapping):
        raise TypeError("it is no object")
    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(parameters))
    parts: list[Any] = [parameters]
    while parts:
        part = parts.pop()
        if isinstance(part, Mapping):
            if isinstance(part.get("$ref"), str):
                resolver.lookup(part["$ref"])
            parts += [value for key, value in part.items() if key not in ("enum", "const", "default", "examples")]
        elif isinstance(part, list):
            parts += part


def call_id(turn: int, place: int) -> str:
    # Nine letters and digits, as Mistral's templates require; the same for the same reply of an episode.
    return f"c{turn % 10**5:05d}{place % 10**3:03d}"


def find_tool(tools: Sequence[ToolSpec], name: str) -> ToolSpec | None:
    return next((tool for tool in tools if tool.name == name), None)

"""Tools (`ToolSpec`), their calls (`ParsedCall`), and the interface of formats that read calls."""

from __future__ import annotations

import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

logger = logging.getLogger(__name__)

_SHOWN = 8  # values of an enum in a tool's usage
_QUOTED = 200  # characters of a problem in a warning
_DRAFTS = (Draft202012Validator, Draft7Validator, Draft4Validator)


@dataclass(frozen=True)
class ToolSpec:
    """A tool: name, description, and the JSON schema of its arguments (an object)."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    @classmethod
    def of_openai(cls, tool: Mapping[str, Any]) -> ToolSpec:
        """Read a tool in OpenAI's form. Raises ValueError if it is no named function, or its schema is no object."""
        function = tool.get("function") if tool.get("type", "function") == "function" else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            raise ValueError(f"not a tool: {json.dumps(tool, default=str)[:200]}; expected a function with a name")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(parameters, Mapping):
            raise ValueError(f"the parameters of tool {function['name']!r} are no JSON schema: it is no object")
        spec = cls(function["name"], str(function.get("description") or ""), parameters)
        if problem := spec._checker[1]:
            logger.warning("the parameters of the tool %r are taken leniently: %s", spec.name, problem[:_QUOTED])
        return spec

    def to_openai(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    @cached_property
    def usage(self) -> str:
        """The tool's arguments in one line, shown to an agent whose call had wrong ones."""
        if self._checker[0] is None:
            return f"the arguments of {self.name} are an object"
        required = self._required
        taken = [
            f"{name} ({_kind(schema)}{'' if name in required else ', optional'})"
            for name, schema in (self.parameters.get("properties") or {}).items()
        ]
        return f"{self.name} takes {', '.join(taken) or 'no arguments'}"

    @cached_property
    def example(self) -> str:
        """Example arguments as JSON text: each required one, with a value of its type."""
        properties = self.parameters.get("properties") or {}
        values = {name: _value(name, properties.get(name)) for name in self._required}
        return json.dumps(values, ensure_ascii=False)

    @property
    def _required(self) -> list[str]:
        found = self.parameters.get("required")
        return found if isinstance(found, list) and self._checker[0] is not None else []

    @cached_property
    def _checker(self) -> tuple[Any, str]:
        """The validator of the first draft that reads the parameters, or None, and what the newest draft refuses."""
        problem = ""
        try:
            for kind in (validator_for(self.parameters, Draft202012Validator), *_DRAFTS):
                # Without formats a pattern may be one of ECMAScript.
                for formats in (kind.FORMAT_CHECKER, FormatChecker(formats=())):
                    try:
                        kind.check_schema(self.parameters, format_checker=formats)
                    except SchemaError as error:
                        problem = problem or error.message
                    else:
                        return kind(self.parameters, registry=Registry()), problem  # fetches no remote schema
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            problem = problem or str(error)
        return None, problem

    def problem(self, arguments: Any) -> str | None:
        """Return what is wrong with the arguments and where, or None if they fit the schema."""
        if not isinstance(arguments, dict):
            return "the arguments must be a JSON object"
        if (validator := self._checker[0]) is None:
            return None
        try:
            error = best_match(validator.iter_errors(arguments))
        except RecursionError:
            return "the arguments are nested too deeply"
        except (OverflowError, ValueError) as reason:
            return f"the arguments hold a number that is not finite ({reason})"
        # A pattern of ECMAScript, a reference to elsewhere or to what is no schema.
        except (re.error, Unresolvable, AttributeError, TypeError) as reason:
            logger.warning("arguments of the tool %r are not checked: %s", self.name, reason)
            return None
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


def call_id(turn: int, place: int) -> str:
    # Nine letters and digits, as Mistral's templates require; the same for the same reply of an episode.
    return f"c{turn % 10**5:05d}{place % 10**3:03d}"


def find_tool(tools: Sequence[ToolSpec], name: str) -> ToolSpec | None:
    return next((tool for tool in tools if tool.name == name), None)

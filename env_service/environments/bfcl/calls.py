"""Tool calls out of text: the model's in tags, and the package's reference calls. Neither is ever evaluated.

A malformed call becomes a `Malformed` with the reason, in its place among the calls.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from env_service.tool_calls import DECODER, BadCall, ToolCall, end_of_blank, explained, kind_of, structured_calls

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, END_THINK = "<think>", "</think>"
MAX_CALLS_PER_MESSAGE = 64
_TAG = re.compile("|".join((OPEN, CLOSE, THINK, END_THINK)))


@dataclass(frozen=True)
class BfclCall:
    """`positional` is used by reference calls only."""

    name: str
    arguments: Mapping[str, Any]
    positional: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Malformed:
    """An invalid call, with the reason for the agent."""

    reason: str


def parse_action(action: Mapping[str, Any]) -> list[BfclCall | Malformed]:
    """Return the calls of an assistant message (of `tool_calls` if there are any), or [] if it answers the user. Raises
    ValueError for another message."""
    if not isinstance(action, Mapping) or action.get("role") != "assistant":
        raise ValueError(f"an action is a message of the role `assistant`; got {str(action)[:200]!r}")
    content, structured = action.get("content"), action.get("tool_calls")
    if content is not None and not isinstance(content, str):
        raise ValueError(f"the content of an action is text; got {type(content).__name__}")
    if structured is not None and not isinstance(structured, list):
        raise ValueError(f"`tool_calls` of an action is a list; got {type(structured).__name__}")
    found = [of_structured(call) for call in structured_calls(action)] if structured else parse_text(content or "")
    return [too_many(len(found))] if len(found) > MAX_CALLS_PER_MESSAGE else found


def too_many(calls: int) -> Malformed:
    reason = f"one message may hold at most {MAX_CALLS_PER_MESSAGE} calls, this one holds {calls}; none was executed"
    return Malformed(reason)


def parse_text(text: str) -> list[BfclCall | Malformed]:
    """Return the calls in a model's text outside its reasoning (up to the last `</think>`, or from an unclosed
    `<think>` on). A tag within a call's JSON belongs to the JSON."""
    found: list[BfclCall | Malformed] = []
    begin = position = 0
    while tag := _TAG.search(text, position):
        position = tag.end()
        if tag.group() == OPEN:
            call, position = _read_block(text, position)
            found.append(call)
        elif tag.group() == CLOSE:
            found.append(Malformed(f"a {CLOSE} without a {OPEN} before it"))
        elif tag.group() == END_THINK:
            found, begin = [], position
        elif (position := text.find(END_THINK, position)) < 0:
            text = text[: tag.start()]
            break
    if not found and _is_bare_call(text[begin:]):
        found.append(Malformed(f"a call must stand between {OPEN} and {CLOSE}"))
    return found


def _read_block(text: str, start: int) -> tuple[BfclCall | Malformed, int]:
    """Read the call after an opening tag; return it and the next position."""
    begin = end_of_blank(text, start)
    try:
        value, end = DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        return _broken(text, start, f"the text between the tags is not valid JSON ({explained(error, begin)})")
    end = end_of_blank(text, end)
    if text.startswith(CLOSE, end):
        return _from_object(value), end + len(CLOSE)
    return _broken(text, end, "there is text after the JSON object; give each call its own tags")


def _broken(text: str, start: int, reason: str) -> tuple[Malformed, int]:
    tag = _TAG.search(text, start)
    if tag and tag.group() == CLOSE:
        return Malformed(reason), tag.end()
    return Malformed(f"a {OPEN} is not closed with {CLOSE}"), tag.start() if tag else len(text)


def _from_object(value: Any) -> BfclCall | Malformed:
    if not isinstance(value, dict):
        return Malformed(f"a call is a JSON object with `name` and `arguments`, not a {kind_of(value)}")
    if set(value) != {"name", "arguments"}:
        return Malformed(f"a call has exactly the keys `name` and `arguments`; this one has {sorted(value)}")
    return _checked(value["name"], value["arguments"])


def of_structured(call: ToolCall | BadCall) -> BfclCall | Malformed:
    """Convert an entry of `tool_calls` to a call of the package."""
    return Malformed(call.reason) if isinstance(call, BadCall) else BfclCall(call.name, call.arguments)


def _checked(name: Any, arguments: Any) -> BfclCall | Malformed:
    if not isinstance(name, str) or not name:
        return Malformed(f"`name` must be the name of a function, not a {kind_of(name)}")
    if not isinstance(arguments, dict):
        return Malformed(f"`arguments` must be a JSON object of argument names and values, not a {kind_of(arguments)}")
    return BfclCall(name, arguments)


def _is_bare_call(text: str) -> bool:
    body = re.sub(r"^```(?:json)?\s*|\s*```$", "", text.strip())
    if not body.startswith(("{", "[")):
        return False
    try:
        value = DECODER.decode(body)
    except (ValueError, RecursionError):
        return False
    items = value if isinstance(value, list) else [value]
    return bool(items) and all(isinstance(item, dict) and {"name", "arguments"} <= set(item) for item in items)


def parse_reference(text: str) -> BfclCall:
    """Parse one of the package's reference calls, `f(1, b='x')`."""
    node = ast.parse(text, mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"the reference call {text!r} is not a plain function call")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError(f"the reference call {text!r} unpacks a mapping, which is not supported")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return BfclCall(node.func.id, arguments, tuple(ast.literal_eval(argument) for argument in node.args))

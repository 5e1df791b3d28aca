"""Tool calls of an assistant message, for any environment: in `tool_calls`, or in `<tool_call>` tags.

Nothing raises: a malformed call becomes a `BadCall` with the reason, in its place among the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from env_service.base import Message

_OPEN, _CLOSE, _END_THOUGHT = "<tool_call>", "</tool_call>", "</think>"
_OPEN_OR_THOUGHT = re.compile(f"{_OPEN}|{_END_THOUGHT}")
_BLANK = re.compile(r"\s*")
_FORM = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'
HOW_TO_CALL = """For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""
"""How to call in text, in the wording of the Qwen chat template."""


def tool_responses(results: Iterable[str]) -> str:
    """Return the observation after calls in text: one tagged result each, in the order of the calls."""
    return "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in results)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call; `id` is None if it was written as text or has none."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class BadCall:
    """Malformed call, with the reason for the agent; `name` is "" if it is unreadable."""

    reason: str
    name: str = ""
    id: str | None = None


def structured_calls(message: Mapping[str, Any]) -> list[ToolCall | BadCall]:
    """Return the calls in a message's `tool_calls`, in order."""
    calls = message.get("tool_calls")
    return [_structured(call) for call in calls] if isinstance(calls, list) else []


def tagged_calls(text: str, form: str = _FORM) -> list[ToolCall | BadCall]:
    """Return the calls in a text's `<tool_call>` tags; the last tag may lack its end. `form` shows how to write a
    call."""
    found = []
    position = text.find(_OPEN)
    while position >= 0:
        start = position + len(_OPEN)
        # A tag inside a call's JSON is part of the JSON.
        close = text.find(_CLOSE, _end_of_json(text, start))
        found.append(_tagged(text[start:] if close < 0 else text[start:close], form))
        position = -1 if close < 0 else text.find(_OPEN, close)
    return found


def after_thoughts(text: str) -> str:
    """Return the text after the last `</think>`, or all of it; a `</think>` inside a call's JSON does not count."""
    begin = position = 0
    while tag := _OPEN_OR_THOUGHT.search(text, position):
        if tag.group() == _END_THOUGHT:
            begin = position = tag.end()
        else:
            position = _end_of_json(text, tag.end())
    return text[begin:]


def _end_of_json(text: str, start: int) -> int:
    try:
        return _LOOSE.raw_decode(text, end_of_blank(text, start))[1]
    except (ValueError, RecursionError):
        return start


def end_of_blank(text: str, start: int) -> int:
    match = _BLANK.match(text, start)
    return match.end() if match else start


def answer_to(call: ToolCall | BadCall, content: str) -> Message:
    """Return the tool message that answers a call, without an id if the call has none."""
    answer: Message = {"role": "tool", "content": content}
    if call.id is not None:
        answer["tool_call_id"] = call.id
        answer["name"] = call.name
    return answer


def loads_strictly(text: str) -> Any:
    """Return the JSON value of a text; raises ValueError that says what is wrong, and where."""
    try:
        return printable(DECODER.decode(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(explained(error)) from error


def printable(value: Any) -> Any:
    """Return a JSON value that UTF-8 can hold; raises ValueError."""
    try:
        # JSON can spell lone surrogates, which UTF-8 cannot hold.
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("a text in it holds a lone surrogate") from error
    return value


def kind_of(value: Any) -> str:
    """Return JSON's name of a value's type."""
    names = {dict: "object", list: "list", str: "string", bool: "boolean", int: "number", float: "number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def explained(error: Exception, begin: int = 0) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos - begin}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]


def _loosely(text: str) -> Any:
    try:
        # Text in tags may hold line breaks inside strings, as models write them, and a key twice.
        return printable(json.loads(text, strict=False))
    except (ValueError, RecursionError) as error:
        raise ValueError(explained(error)) from error


def _structured(item: Any) -> ToolCall | BadCall:
    if not isinstance(item, dict):
        return BadCall(f"a call is an object with a `function`, not a {kind_of(item)}")
    call_id = item.get("id")
    if not isinstance(call_id, str) or not _is_text(call_id):
        call_id = None
    function = item.get("function", item)
    if not isinstance(function, dict) or "name" not in function:
        return BadCall("the call has no `function` with a `name` and `arguments`", "", call_id)
    return _call(function["name"], function.get("arguments"), loads_strictly, "", call_id)


def _tagged(body: str, form: str) -> ToolCall | BadCall:
    try:
        value = _loosely(body)
    except ValueError as error:
        return BadCall(f"the call is no valid JSON ({error}); write {form}")
    if not isinstance(value, dict):
        return BadCall(f"the call is no JSON object; write {form}")
    return _call(value.get("name"), value.get("arguments"), _loosely, f"; write {form}")


def _call(
    name: Any, arguments: Any, decode: Callable[[str], Any], how: str, call_id: str | None = None
) -> ToolCall | BadCall:
    if not isinstance(name, str) or not name.strip() or not _is_text(name):
        return BadCall(f"the call has no `name`: it must be that of a function, not {kind_of(name)}{how}", "", call_id)
    if isinstance(arguments, str):
        try:
            arguments = decode(arguments) if arguments.strip() else {}
        except ValueError as error:
            return BadCall(f"the arguments of {name[:80]!r} are no valid JSON ({error})", name, call_id)
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        reason = f"the arguments of {name[:80]!r} must be a JSON object, not a {kind_of(arguments)}"
        return BadCall(reason, name, call_id)
    return ToolCall(name, arguments, call_id)


def _is_text(text: str) -> bool:
    return text.isascii() or text.encode("utf-8", "ignore").decode() == text


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return result


_LOOSE = json.JSONDecoder(strict=False)
# `tool_calls` come from a server: standard JSON, and no key twice.
DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)

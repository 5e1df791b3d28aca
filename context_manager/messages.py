"""Chat messages with tool calls: OpenAI's form, and the form that chat templates take."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any


class ContentError(ValueError):
    """A message contains something other than text."""


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, its parts joined; raises ContentError."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        return str(content)
    texts = []
    for part in content:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            kind = part.get("type", "unknown") if isinstance(part, Mapping) else type(part).__name__
            raise ContentError(
                f"a message of the role {message.get('role')} has a content part of the type {kind}: messages are text "
                "here, images, sounds and files cannot be shown to the policy"
            )
        texts.append(text)
    return "".join(texts)


def calls_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [dict(call) for call in message.get("tool_calls") or ()]


def is_answer(message: Mapping[str, Any]) -> bool:
    """Whether a message answers a call by id; plain observations carry no id."""
    return message.get("role") == "tool" and bool(message.get("tool_call_id"))


def for_template(message: Mapping[str, Any], *, arguments_as_text: bool = False) -> dict[str, Any]:
    """Return a message for a chat template, with call arguments as data or JSON text. Invalid arguments stay text."""
    shown = {**message, "content": text_of(message)}
    if "tool_calls" in shown:
        del shown["tool_calls"]
        if calls := calls_of(message):
            shown["tool_calls"] = [_with_arguments(call, arguments_as_text) for call in calls]
    return shown


def _with_arguments(call: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if as_text:
        arguments = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    elif isinstance(arguments, str) or arguments is None:
        arguments = _decoded(arguments or "{}")
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _decoded(arguments: str) -> Any:
    try:
        data = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return data if isinstance(data, dict) else arguments


def paired(messages: Sequence[Mapping[str, Any]], known: Collection[Any]) -> list[dict[str, Any]]:
    """Drop calls without an answer, and turn answers without a call into user messages, as chat APIs demand."""
    shown: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        one = dict(message)
        if is_answer(one) and one["tool_call_id"] in known and one["tool_call_id"] not in _open_calls(shown):
            one = as_user(one)
        elif one.get("tool_calls"):
            answers = set()
            for after in messages[place + 1 :]:
                if not is_answer(after):
                    break
                answers.add(after["tool_call_id"])
            calls = [call for call in calls_of(one) if call.get("id") in answers]
            one = {**one, "tool_calls": calls}
            if not calls:
                del one["tool_calls"]
        shown.append(one)
    return shown


def as_user(message: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": message.get("content")}


def _open_calls(shown: Sequence[Mapping[str, Any]]) -> set[Any]:
    for message in reversed(shown):
        if not is_answer(message):
            return {call.get("id") for call in calls_of(message)}
    return set()


def with_calls(text: str, calls: Sequence[Mapping[str, Any]]) -> str:
    written = []
    for call in calls:
        function = call.get("function") or {}
        arguments = _decoded(str(function.get("arguments") or "{}"))
        data = json.dumps({"name": function.get("name"), "arguments": arguments}, ensure_ascii=False)
        written.append(f"<tool_call>{data}</tool_call>")
    return "\n".join([*([text] if text.strip() or not written else []), *written])

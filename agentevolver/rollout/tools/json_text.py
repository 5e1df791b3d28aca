"""Strict JSON of calls. Arguments keep the model's own text, so that numbers stay as written."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from agentevolver.rollout.tools.schema import ParsedCall

MAX_DEPTH = 64
_SPACE = re.compile(r"[ \t\n\r]*")
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class UnparsedCall(ValueError):
    """Text that was meant as a call but is invalid; the message is for the agent."""


class _BadJson(UnparsedCall):
    pass


def skip_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def read_call(text: str, at: int, keys: Sequence[str] = ("arguments",)) -> tuple[ParsedCall, int]:
    """Return the call in the JSON object at position `at`, and the position after it.

    Raises UnparsedCall. The arguments are the member under one of `keys`.
    """
    try:
        members, end = _object(text, at)
    except _BadJson as error:
        raise UnparsedCall(f"its JSON is broken: {error}") from None
    if "name" not in members:
        raise UnparsedCall('it has no "name"')
    name, _ = members["name"]
    if not isinstance(name, str) or not name.strip():
        raise UnparsedCall('its "name" is no name')
    given = [key for key in keys if key in members]
    if len(given) != 1:
        wanted = " or ".join(f'"{key}"' for key in keys)
        raise UnparsedCall(f"it has {'more than one of' if given else 'no'} {wanted}")
    arguments, written = members[given[0]]
    if not isinstance(arguments, dict):
        raise UnparsedCall(f'its "{given[0]}" must be a JSON object')
    return ParsedCall(name, written), end


def check_arguments(text: str) -> None:
    """Raise UnparsedCall unless a text is one JSON object."""
    try:
        _, end = _object(text, skip_space(text, 0))
    except _BadJson as error:
        raise UnparsedCall(f"its arguments are broken: {error}") from None
    if skip_space(text, end) < len(text):
        raise UnparsedCall("there is more text after its arguments")


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _BadJson("a number is too large")
    return value


def _no_number(text: str) -> Any:
    raise _BadJson(f"{text} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    twice = next((key for key, count in Counter(key for key, _ in pairs).items() if count > 1), None)
    if twice is not None:
        raise _BadJson(f"the key {twice[:60]!r} stands twice in one object")
    return dict(pairs)


_DECODER = json.JSONDecoder(parse_float=_number, parse_constant=_no_number, object_pairs_hook=_unique)


def _near(text: str, at: int) -> str:
    shown = text[at : at + 30]
    return f"at {shown!r}" if shown else "at its end"


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        value, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise _BadJson(f"{error.msg} {_near(text, error.pos)}") from None
    except RecursionError:
        raise _BadJson(f"nested more than {MAX_DEPTH} levels deep") from None
    except _BadJson:
        raise
    except ValueError:  # int() limits the number of digits
        raise _BadJson("a number is too large") from None
    _check(value, text[at:end])
    return value, end


def _check(value: Any, text: str) -> None:
    level = [value] if isinstance(value, (dict, list)) else []
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _BadJson(f"nested more than {MAX_DEPTH} levels deep")
        held = [part for outer in level for part in (outer.values() if isinstance(outer, dict) else outer)]
        level = [part for part in held if isinstance(part, (dict, list))]
    if _HALF_PAIR.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise _BadJson("a string holds half of a surrogate pair") from None


def _object(text: str, at: int) -> tuple[dict[str, tuple[Any, str]], int]:
    """Return the object's members, each with its source text, and the position after it."""
    if not text.startswith("{", at):
        raise _BadJson(f"expected a JSON object {_near(text, at)}")
    members: dict[str, tuple[Any, str]] = {}
    at = skip_space(text, at + 1)
    if text.startswith("}", at):
        return members, at + 1
    while True:
        if not text.startswith('"', at):
            raise _BadJson(f"expected a key in double quotes {_near(text, at)}")
        try:
            key, end = scanstring(text, at + 1)
        except json.JSONDecodeError as error:
            raise _BadJson(f"{error.msg} {_near(text, error.pos)}") from None
        at = skip_space(text, end)
        if not text.startswith(":", at):
            raise _BadJson(f"expected ':' {_near(text, at)}")
        start = skip_space(text, at + 1)
        value, at = _value(text, start)
        if key in members:
            raise _BadJson(f"the key {key[:60]!r} stands twice in one object")
        members[key] = (value, text[start:at])
        at = skip_space(text, at)
        if text.startswith("}", at):
            return members, at + 1
        if not text.startswith(",", at):
            raise _BadJson(f"expected ',' or '}}' {_near(text, at)}")
        at = skip_space(text, at + 1)

"""JSON as models write it, read strictly: an object's members with their own text, so that numbers stay as written."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

MAX_DEPTH = 64
_SPACE = re.compile(r"[ \t\n\r]*")
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class BadJson(ValueError):
    """Text that is no JSON, or JSON that no tool is to be given; the message says why, for the agent."""


@dataclass(frozen=True, slots=True)
class Member:
    """The value of a key of an object, and the JSON text that it was read from."""

    value: Any
    text: str


def skip_space(text: str, at: int) -> int:
    """Return the first place from `at` that is no white space of JSON's."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadJson("a number is too large")
    return value


def _no_number(text: str) -> Any:
    raise BadJson(f"{text} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadJson(f"the key {key[:60]!r} stands twice in one object")
            seen.add(key)
    return members


_DECODER = json.JSONDecoder(parse_float=_number, parse_constant=_no_number, object_pairs_hook=_unique)


def _near(text: str, at: int) -> str:
    shown = text[at : at + 30]
    return f"at {shown!r}" if shown else "at its end"


def read_value(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value that begins at a place of a text, and the place after it.

    Raises:
        BadJson: there is none; an object has a key twice; it is nested more than `MAX_DEPTH` deep; a number is too
            large, or a string holds half of a surrogate pair.
    """
    try:
        value, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise BadJson(f"{error.msg} {_near(text, error.pos)}") from None
    except RecursionError:
        raise BadJson(f"nested more than {MAX_DEPTH} levels deep") from None
    except BadJson:
        raise
    except ValueError:  # of int(): more digits than Python reads
        raise BadJson("a number is too large") from None
    _check(value, text[at:end])
    return value, end


def _check(value: Any, text: str) -> None:
    level = [value] if isinstance(value, (dict, list)) else []
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise BadJson(f"nested more than {MAX_DEPTH} levels deep")
        held = [part for outer in level for part in (outer.values() if isinstance(outer, dict) else outer)]
        level = [part for part in held if isinstance(part, (dict, list))]
    if _HALF_PAIR.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise BadJson("a string holds half of a surrogate pair") from None


def read_object(text: str, at: int) -> tuple[dict[str, Member], int]:
    """Return the members of the JSON object that begins at a place of a text, and the place after it.

    Raises:
        BadJson: there is no object; as `read_value`.
    """
    if not text.startswith("{", at):
        raise BadJson(f"expected a JSON object {_near(text, at)}")
    members: dict[str, Member] = {}
    at = skip_space(text, at + 1)
    if text.startswith("}", at):
        return members, at + 1
    while True:
        if not text.startswith('"', at):
            raise BadJson(f"expected a key in double quotes {_near(text, at)}")
        try:
            key, end = scanstring(text, at + 1)
        except json.JSONDecodeError as error:
            raise BadJson(f"{error.msg} {_near(text, error.pos)}") from None
        at = skip_space(text, end)
        if not text.startswith(":", at):
            raise BadJson(f"expected ':' {_near(text, at)}")
        start = skip_space(text, at + 1)
        value, at = read_value(text, start)
        if key in members:
            raise BadJson(f"the key {key[:60]!r} stands twice in one object")
        members[key] = Member(value, text[start:at])
        at = skip_space(text, at)
        if text.startswith("}", at):
            return members, at + 1
        if not text.startswith(",", at):
            raise BadJson(f"expected ',' or '}}' {_near(text, at)}")
        at = skip_space(text, at + 1)

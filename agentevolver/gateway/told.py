"""Repeated part of a request: what it has in common with the one before it.

An agent sends its whole conversation with every call. What its last answered request began with is known by the digest
of its bytes, and only what follows is read; a request that begins otherwise is read whole.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

_SPACE = re.compile(r"[ \t\n\r]*")
_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_CLOSE = re.compile(r"[ \t\n\r]*\]")
# Of the standard library, since it says where a value ends.
_scan = json.JSONDecoder().raw_decode
# In the place of the messages that are not read.
_STAND_IN = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the messages of a body were read: its first `start` bytes end with the list's bracket, its first `end`
    bytes with the last of `count` messages, and `digest` is of those."""

    start: int
    end: int
    count: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Known:
    """A rollout's last answered request: how far it reached, a list that begins with the keys of its messages and only
    ever grows, and the characters of their texts."""

    mark: Mark
    keys: list[Any]
    chars: int


def mark_of(body: bytes, name: str = "messages") -> Mark | None:
    """Return the mark of a body that is a JSON object, None where its list of messages is not found."""
    try:
        text = body.decode()
        at, field = _SPACE.match(text).end() + 1, ""  # type: ignore[union-attr]  # it matches the empty text
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        while True:
            field, at = _scan(text, at)
            at = _COLON.match(text, at).end()  # type: ignore[union-attr]
            if field == name:
                break
            _, at = _scan(text, at)
            at = _COMMA.match(text, at).end()  # type: ignore[union-attr]
        if text[at] != "[":
            return None
        start = _SPACE.match(text, at + 1).end()  # type: ignore[union-attr]
        _, end = _scan(text, start)
        end, more = _walked(text, end)
    except (ValueError, RecursionError, AttributeError, IndexError):
        return None
    begin, stop = len(text[: at + 1].encode()), len(text[:end].encode())
    return Mark(begin, stop, 1 + more, sha256(memoryview(body)[:stop]).digest())


def rest_of(body: bytes, mark: Mark) -> tuple[dict[str, Any], Mark] | None:
    """Return a body's JSON with the messages after the mark alone, and its own mark; None where it does not begin with
    what was marked, or is better read whole."""
    view = memoryview(body)
    seen = sha256(view[: mark.end])
    if len(body) <= mark.end or seen.digest() != mark.digest:
        return None
    try:
        tail = str(view[mark.end :], "utf-8")
        end, count = _walked(tail, 0)
        close = _CLOSE.match(tail, end)
        if not count or close is None:
            return None
        after = tail[_COMMA.match(tail).end() : end]  # type: ignore[union-attr]  # there is a message
        messages = orjson.loads(f"[{after}]")
        read = orjson.loads(b"%b%d]%b" % (body[: mark.start], _STAND_IN, tail[close.end() :].encode()))
    except (ValueError, RecursionError):
        return None
    if read["messages"] != [_STAND_IN]:  # a second field of the name
        return None
    read["messages"] = messages
    stop = mark.end + len(tail[:end].encode())
    seen.update(view[mark.end : stop])
    return read, Mark(mark.start, stop, mark.count + count, seen.digest())


def _walked(text: str, at: int) -> tuple[int, int]:
    """Return where the last element of a list ends, from the end of one, and how many elements that is further."""
    count = 0
    while (comma := _COMMA.match(text, at)) is not None:
        _, at = _scan(text, comma.end())
        count += 1
    return at, count

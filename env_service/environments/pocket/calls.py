"""A tool call as data, parsed from and written in either syntax, or parsed from a message's `tool_calls`.

Parsing raises only `CallError`, whose text is for the agent. Chat APIs allow no dots in names: `note.find` is
`note_find` there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from env_service.base import Message
from env_service.environments.pocket.tools import TOOLS, Param
from env_service.tool_calls import BadCall, ToolCall, printable, structured_calls

Syntax = Literal["compact", "json"]
SYNTAXES: tuple[Syntax, ...] = ("compact", "json")
_THINK = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_MARK = "<tool_call>"
_DOTTED = re.compile("|".join(re.escape(name) for name in TOOLS if "." in name))
HOW_TO = {
    "compact": "write TOOL ARGS on one line",
    "json": 'write <tool_call>{"name": TOOL, "arguments": {...}}</tool_call>',
}


class CallError(Exception):
    """A call that was not carried out; the message tells the agent why."""


@dataclass(frozen=True, slots=True)
class PocketCall:
    """`args` in the given order; `keys` are their names in a JSON call, None in a compact one."""

    tool: str
    args: tuple[str, ...] = ()
    keys: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return " ".join((self.tool, *self.args))


def parse(action: Message, syntax: Syntax) -> PocketCall:
    """Parse the one call of an assistant message: native `tool_calls`, a JSON call, or the first non-empty line.

    Both syntaxes are accepted; `syntax` selects the one that errors explain. Raises CallError.
    """
    if native := structured_calls(action):
        return call_of(native[0], HOW_TO[syntax])
    text = _THINK.sub("", str(action.get("content") or "")).strip()
    at = text.find(_MARK)
    if at >= 0:
        return _from_json(_decode(text[at + len(_MARK) :], syntax), syntax)
    if text.startswith("{"):
        return _from_json(_decode(text, syntax), syntax)
    words = text.splitlines()[0].strip("` ").split() if text else []
    if not words:
        raise CallError(f"empty call , {HOW_TO[syntax]}")
    tool = words[0].lower()
    return PocketCall(tool, tuple(words[1:]) if tool == "done" else tuple(w.lower() for w in words[1:]))


def call_of(native: ToolCall | BadCall, how_to: str) -> PocketCall:
    """Parse an entry of `tool_calls`; raises CallError, ending with `how_to`."""
    if isinstance(native, BadCall):
        raise CallError(f"{native.reason} , {how_to}")
    call = _call(native.name, native.arguments, how_to)
    return PocketCall(call.tool, tuple(map(_dotted, call.args)), call.keys) if call.tool == "doc" else call


def undotted(text: str) -> str:
    return _DOTTED.sub(lambda name: name[0].replace(".", "_"), text)


def _dotted(name: str) -> str:
    return name.replace("_", ".")


def _decode(text: str, syntax: Syntax) -> Any:
    try:
        return printable(json.JSONDecoder().raw_decode(text.lstrip())[0])
    except (ValueError, RecursionError) as error:
        raise CallError(f"broken json , {HOW_TO[syntax]}") from error


def _from_json(data: Any, syntax: Syntax) -> PocketCall:
    arguments = data.get("arguments", {}) if isinstance(data, dict) else None
    if isinstance(arguments, str):
        arguments = _decode(arguments, syntax) if arguments.strip() else {}
    if not isinstance(data, dict) or not isinstance(data.get("name"), str) or not isinstance(arguments, dict):
        raise CallError(f"not a call , {HOW_TO[syntax]}")
    return _call(data["name"], arguments, HOW_TO[syntax])


def _call(name: str, arguments: dict[str, Any], how_to: str) -> PocketCall:
    tool = _dotted(name.strip().lower())
    given = {str(k): _text(v, how_to) for k, v in arguments.items() if v is not None}
    if tool != "done":
        given = {k: v.lower() for k, v in given.items()}
    return PocketCall(tool, tuple(given.values()), tuple(given))


def _text(value: Any, how_to: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int):
        return str(value).strip()
    raise CallError(f"arguments are words or whole numbers , {how_to}")


def render(call: PocketCall, signature: Sequence[Param], syntax: Syntax) -> str:
    """Write a positional call in an agent's syntax; JSON takes the argument names from `signature`."""
    if syntax == "compact":
        return str(call)
    arguments: dict[str, str | int] = {
        p.key: int(a) if a.isdigit() and p.kind in ("hour", "amount", "qty") else a
        for p, a in zip(signature, call.args, strict=False)
    }
    return f"{_MARK}{json.dumps({'name': call.tool, 'arguments': arguments})}</tool_call>"


def usage(tool: str, signature: Sequence[Param], syntax: Syntax) -> str:
    shown = [(p.key, p.kind if p.kind == "yes" else p.kind.upper()) for p in signature]
    if syntax == "compact":
        return " ".join((tool, *(text for _, text in shown)))
    return tool + " {" + ", ".join(f'"{key}": {text}' for key, text in shown) + "}"

"""Tool calls in text: read from actions and usage lines, written in the syntax that the opening asks for."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

from env_service.environments.pocket.tools import TOOLS
from env_service.environments.pocket.wordings import DAYS

Syntax = Literal["compact", "json"]
Signature = tuple[str, ...]
"""Kinds of a tool's arguments in order, in capitals; `yes` is a confirmation."""

# Which of a tool's own arguments is which, in the usual order; the keys that JSON calls use are the kinds in lower
# case.
USUAL: dict[str, Signature] = {tool.name: tuple(param.kind.upper() for param in tool.params) for tool in TOOLS.values()}
LOOKUPS = frozenset(
    {"note.find", "note.list", "cal.find", "cal.list", "mail.find", "shop.find", "shop.orders", "bank.bal", "me.pin"}
)
GUARDED = frozenset(tool.name for tool in TOOLS.values() if tool.guarded)
NEED_LOGIN = frozenset(tool.name for tool in TOOLS.values() if tool.needs_login)
CHANGES = frozenset(USUAL) - LOOKUPS - {"doc", "done", "bank.login"}

# Chat APIs take no dots in names: natively called, note.find is note_find.
_UNDOTTED = re.compile("|".join(rf"\b{re.escape(name.replace('.', '_'))}\b" for name in USUAL if "." in name))
_THINK = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_MARK = "<tool_call>"
_USAGE = re.compile(r"\b([a-z]+(?:\.[a-z]+)?)((?: (?:[A-Z]{2,}|yes\b))+|(?: \{[^{}]*\})|(?=[):]))")


@dataclass(frozen=True, slots=True)
class TeacherCall:
    """A tool and its arguments in the order in which they were given."""

    tool: str
    args: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.tool, *self.args))

    @property
    def app(self) -> str:
        """The part before the dot."""
        return self.tool.partition(".")[0]


def without_thought(action: str) -> str:
    """Return an assistant message without what it thinks in <think> tags."""
    return _THINK.sub("", action)


def dotted(text: str) -> str:
    """Return a text with the names of tools as PocketWorld has them."""
    return _UNDOTTED.sub(lambda name: name[0].replace("_", "."), text)


def exchanges(action: str, observation: str) -> list[tuple[TeacherCall | None, str]]:
    """Return the calls of an assistant message, each with its answer.

    Where there is not one line of an answer for each of several calls, the first of them has the whole.
    """
    written = without_thought(action).split(_MARK)[1:]
    answers = dotted(observation).splitlines()
    if len(written) > 1 and len(written) == len(answers):
        return [(_read_json(text), answer) for text, answer in zip(written, answers, strict=True)]
    return [(read_call(action), dotted(observation) if written else observation)]


def read_call(action: str) -> TeacherCall | None:
    """Return the call of an assistant message in either syntax, the first of several, None if there is none in it."""
    text = without_thought(action).strip()
    at = text.find(_MARK)
    if at >= 0 or text.startswith("{"):
        return _read_json(text[at + len(_MARK) :] if at >= 0 else text)
    words = text.splitlines()[0].strip("` ").split() if text else []
    if not words:
        return None
    tool = words[0].lower()
    return TeacherCall(tool, tuple(words[1:]) if tool == "done" else tuple(word.lower() for word in words[1:]))


def _read_json(text: str) -> TeacherCall | None:
    try:
        data, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(data, dict)
        or not isinstance(data.get("name"), str)
        or not isinstance(data.get("arguments", {}), dict)
    ):
        return None
    tool = data["name"].strip().lower().replace("_", ".")
    given = {
        str(key).lower(): "yes" if value is True else str(value).strip()
        for key, value in data.get("arguments", {}).items()
    }
    if tool != "done":
        given = {key: value.lower() for key, value in given.items()}
    if tool == "doc":
        given = {key: value.replace("_", ".") for key, value in given.items()}
    return TeacherCall(tool, tuple(given.values()))


def write_call(call: TeacherCall, syntax: Syntax) -> str:
    """Return a call as an assistant message."""
    if syntax == "compact":
        return str(call)
    arguments = {
        key: int(arg) if key in ("amount", "qty", "hour") and arg.isdecimal() else arg for key, arg in _keyed(call)
    }
    return f"{_MARK}{json.dumps({'name': call.tool, 'arguments': arguments})}</tool_call>"


def _keyed(call: TeacherCall) -> list[tuple[str, str]]:
    """The arguments with their JSON keys, in the order given;
    where sites order them differently, the value tells which it is."""
    if call.tool == "bank.pay":
        return [("amount" if arg.isdecimal() else "name", arg) for arg in call.args]
    if call.tool == "cal.add":
        return [("hour" if arg.isdecimal() else "day" if arg in DAYS else "name", arg) for arg in call.args]
    keys = [kind.lower() for kind in USUAL.get(call.tool, ())]
    keys += ["confirm"] + [f"arg{i}" for i in range(len(call.args))]
    return list(zip(keys, call.args, strict=False))


def read_usage(text: str) -> dict[str, Signature]:
    """Return the tools whose usage a text shows (an opening, a profile, a manual, an error)
    and the kinds of their arguments."""
    found: dict[str, Signature] = {}
    for tool, rest in _USAGE.findall(text):
        if tool not in USUAL:
            continue
        if rest.strip().startswith("{"):
            kinds = tuple(kind if kind != "yes" else "yes" for kind in re.findall(r'": ([A-Z]+|yes)', rest))
        else:
            kinds = tuple(rest.split())
        found.setdefault(tool, kinds)
    return found


def canonical(call: TeacherCall) -> tuple[str, ...]:
    """Return what a call does, whatever the site's order of arguments and without a confirmation:
    the tool and its usual arguments."""
    args = list(call.args)
    if call.tool in GUARDED and args[-1:] == ["yes"]:
        args = args[:-1]
    if call.tool == "bank.pay":
        args.sort(key=str.isdecimal)
    elif call.tool == "cal.add":
        args.sort(key=lambda a: 2 if a.isdecimal() else 1 if a in DAYS else 0)
    return (call.tool, *args)

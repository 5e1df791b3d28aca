"""Tool calls as text, one line a call, read from actions and usage lines. Native tool calls are not supported."""

from __future__ import annotations

import re
from dataclasses import dataclass

from env_service.environments.pocket.tools import TOOLS
from env_service.environments.pocket.wordings import DAYS

Signature = tuple[str, ...]
"""Kinds of a tool's arguments in order, in capitals; `yes` is a confirmation."""

# Kinds of each tool's arguments in the usual order.
USUAL: dict[str, Signature] = {tool.name: tuple(param.kind.upper() for param in tool.params) for tool in TOOLS.values()}
LOOKUPS = frozenset(
    {"note.find", "note.list", "cal.find", "cal.list", "mail.find", "shop.find", "shop.orders", "bank.bal", "me.pin"}
)
GUARDED = frozenset(tool.name for tool in TOOLS.values() if tool.guarded)
NEED_LOGIN = frozenset(tool.name for tool in TOOLS.values() if tool.needs_login)
CHANGES = frozenset(USUAL) - LOOKUPS - {"doc", "done", "bank.login"}

_THINK = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_USAGE = re.compile(r"\b([a-z]+(?:\.[a-z]+)?)((?: (?:[A-Z]{2,}|yes\b))+|(?=[):]))")


@dataclass(frozen=True, slots=True)
class TeacherCall:
    tool: str
    args: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.tool, *self.args))

    @property
    def app(self) -> str:
        return self.tool.partition(".")[0]


def without_thought(action: str) -> str:
    return _THINK.sub("", action)


def read_call(action: str) -> TeacherCall | None:
    """Return the call in an assistant message, or None."""
    text = without_thought(action).strip()
    words = text.splitlines()[0].strip("` ").split() if text else []
    if not words:
        return None
    tool = words[0].lower()
    return TeacherCall(tool, tuple(words[1:]) if tool == "done" else tuple(word.lower() for word in words[1:]))


def read_usage(text: str) -> dict[str, Signature]:
    """Return the tools whose usage a text shows, with the kinds of their arguments."""
    found: dict[str, Signature] = {}
    for tool, rest in _USAGE.findall(text):
        if tool in USUAL:
            found.setdefault(tool, tuple(rest.split()))
    return found


def canonical(call: TeacherCall) -> tuple[str, ...]:
    """Return the tool and its arguments in the usual order, without a confirmation."""
    args = list(call.args)
    if call.tool in GUARDED and args[-1:] == ["yes"]:
        args = args[:-1]
    if call.tool == "bank.pay":
        args.sort(key=str.isdecimal)
    elif call.tool == "cal.add":
        args.sort(key=lambda a: 2 if a.isdecimal() else 1 if a in DAYS else 0)
    return (call.tool, *args)

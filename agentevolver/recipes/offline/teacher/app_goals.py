"""Goals of `pocket_app`: reads and writes their English wordings, and computes the changes that they ask for.

A goal has an opening, which defines `it` and `him`, and links, which ask for changes. `it` and `him` keep their values
from the start of the goal, even if a link changes the mail or the meeting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from agentevolver.recipes.offline.teacher.calls import TeacherCall
from env_service.environments.pocket.wordings import APP_LINKS, APP_OPENINGS, DAYS

APP = "app"
MOST_LINKS = 4
# The tools that a link needs, besides those that show `it` and `him`.
LINK_TOOLS: dict[str, frozenset[str]] = {
    "pay": frozenset({"shop.find", "bank.pay"}),
    "send": frozenset({"mail.send"}),
    "buy": frozenset({"shop.buy"}),
    "note": frozenset({"note.find", "note.add"}),
    "move": frozenset({"cal.find", "cal.move"}),
    "plan": frozenset({"cal.add"}),
    "drop": frozenset({"mail.del"}),
}
OPENING_TOOLS = frozenset({"mail.find", "cal.list"})
_WITHOUT_HIM = {"buy", "note", "drop"}
_WITHOUT_IT = {"move", "plan"}


@dataclass(frozen=True, slots=True)
class AppLink:
    """One request of a goal, and the note or person that it names ("" for none)."""

    kind: str
    other: str = ""


class KnownWorld(Protocol):
    """Knowledge of the world. Each method raises MissingLookup if it lacks a look-up; `one` and `price` raise
    Impossible if the world has no such thing, or several."""

    def rows(self, tool: str, *args: str) -> list[tuple[str, ...]]: ...

    def one(self, what: str, tool: str, *args: str) -> tuple[str, ...]: ...

    def price(self, word: str) -> str: ...


# ---- wordings ----


def _group(wording: str) -> str:
    return re.sub(r"\\\{\w\\\}", "([a-z]+)", re.escape(wording))


_SLOT = {kind: slot[1] for kind, (text, *_) in APP_LINKS.items() if (slot := re.search(r"\{(\w)\}", text))}
_LINKS = [(kind, re.compile(rf"(?:^| ){_group(text)}(?= |$)")) for kind, texts in APP_LINKS.items() for text in texts]
# Without commas, which `normal` removes.
_OPENINGS = [
    re.compile(text.removesuffix(" :").replace(" ,", "").format(p="(?P<p>[a-z]+)", d=f"(?P<d>{'|'.join(DAYS)})"))
    for text in APP_OPENINGS
]


def read_goal(plain: str) -> tuple[dict[str, str], tuple[AppLink, ...]] | None:
    """Return sender and day (p, d) and the links of a query without commas, or None if it is no goal."""
    opening, colon, asked = (part.strip() for part in plain.partition(":"))
    slots = next((match.groupdict() for one in _OPENINGS if (match := one.fullmatch(opening))), None)
    links = _read_links(asked)
    return (slots, links) if colon and slots is not None and 1 <= len(links) <= MOST_LINKS else None


def _read_links(asked: str) -> tuple[AppLink, ...]:
    links, place = [], 0
    while place < len(asked):
        found = ((kind, match) for kind, pattern in _LINKS if (match := pattern.match(asked, place)))
        kind, match = next(found, ("", None))
        if match is None:
            return ()
        links.append(AppLink(kind, *match.groups()))
        place = match.end()
    return tuple(links)


def write_goal(slots: Mapping[str, str], links: Sequence[AppLink], wordings: Sequence[int]) -> str:
    first, *rest = wordings
    asked = [
        APP_LINKS[link.kind][i].format(**{_SLOT.get(link.kind, ""): link.other})
        for link, i in zip(links, rest, strict=True)
    ]
    return f"{APP_OPENINGS[first].format(**slots)} {' , '.join(asked)}"


# ---- what they come to ----


class _Subject:
    def __init__(self, view: KnownWorld, slots: Mapping[str, str]) -> None:
        self.view = view
        self._slots = slots

    @cached_property
    def mail(self) -> tuple[str, ...]:
        """The mail's id, sender and text."""
        return self.view.one(f"mail from {self._slots['p']}", "mail.find", self._slots["p"])

    @cached_property
    def meeting(self) -> tuple[str, ...]:
        """The meeting's id, person, day and hour."""
        return self.view.one(f"single meeting on {self._slots['d']}", "cal.list", self._slots["d"])

    @property
    def it(self) -> str:
        return self.mail[2]

    @property
    def him(self) -> str:
        return self.meeting[1]


def _move(s: _Subject, other: str) -> tuple[str, ...] | None:
    day = s.view.one(f"meeting with {other}", "cal.find", other)[2]
    return None if day == s.meeting[2] else ("cal.move", s.meeting[0], day)


_EFFECTS: dict[str, Callable[[_Subject, str], tuple[str, ...] | None]] = {
    "pay": lambda s, other: ("bank.pay", s.him, s.view.price(s.it)),
    "send": lambda s, other: ("mail.send", s.him, s.it),
    "buy": lambda s, other: ("shop.buy", s.it, "1"),
    "note": lambda s, other: ("note.add", s.it, s.view.one(f"note {other}", "note.find", other)[2]),
    "move": _move,
    "plan": lambda s, other: ("cal.add", other, *s.meeting[2:4]),
    "drop": lambda s, other: ("mail.del", s.mail[0]),
}


def opening_looks(slots: Mapping[str, str]) -> list[TeacherCall]:
    return [TeacherCall("mail.find", (slots["p"],)), TeacherCall("cal.list", (slots["d"],))]


def effects(view: KnownWorld, slots: Mapping[str, str], links: Sequence[AppLink], first: int) -> list[tuple[str, ...]]:
    """Return the changes that the `first` links of a goal ask for, in order; raises MissingLookup or Impossible.

    The subjects that any link uses are looked up before anything else.
    """
    subject = _Subject(view, slots)
    kinds = {link.kind for link in links}
    if kinds - _WITHOUT_IT:
        _ = subject.mail
    if kinds - _WITHOUT_HIM:
        _ = subject.meeting
    found = [_EFFECTS[link.kind](subject, link.other) for link in links[:first]]
    return [effect for effect in found if effect is not None]


def tools_of_links(links: Sequence[AppLink]) -> frozenset[str]:
    return OPENING_TOOLS.union(*(LINK_TOOLS[link.kind] for link in links))

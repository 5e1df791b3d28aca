"""Intents: what a task asks for, read from English wordings and written in them.

The teacher reads all wordings of a kind, and writes only the first two. An unknown wording is `None`, to which the
roles answer HTTP 400.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentevolver.recipes.offline.teacher.app_goals import APP, AppLink, read_goal, write_goal
from env_service.environments.pocket.wordings import DAYS, WORDINGS

WRITTEN = 2


@dataclass(frozen=True, slots=True)
class Intent:
    """A kind of task and the slots of its wording: w thing, t tag, p and q people, d day, h hour, n and m numbers.

    A goal of `pocket_app` has the kind `app` and its `links` in order; other kinds have no links.
    """

    kind: str
    slots: dict[str, str]
    links: tuple[AppLink, ...] = ()

    @property
    def words(self) -> set[str]:
        return {*self.slots.values(), *(link.other for link in self.links if link.other)}

    @property
    def level(self) -> int:
        """Difficulty, 1 to 4; for a goal of `pocket_app` its number of links."""
        return len(self.links) or KINDS[self.kind].level


@dataclass(frozen=True, slots=True)
class IntentKind:
    level: int
    wordings: tuple[str, ...]


KINDS = {name: IntentKind(level, wordings) for name, (level, wordings) in WORDINGS.items()}

_SLOTS = {"d": "|".join(DAYS), "n": r"\d+", "m": r"\d+", "h": r"\d+"}
_POLITE = re.compile(r"^(?:please|can you|could you|i want you to|your task|task|do this|hi)\b[ :,]*")
_TAIL = re.compile(r"[ ,]+(?:please|now)$")


def _pattern(wording: str) -> re.Pattern[str]:
    seen: set[str] = set()
    parts = []
    for part in re.split(r"(\{\w\})", wording.replace(" ,", "")):
        name = part[1:-1]
        if not re.fullmatch(r"\{\w\}", part):
            parts.append(re.escape(part))
        elif name in seen:
            parts.append(f"(?P={name})")
        else:
            seen.add(name)
            parts.append(f"(?P<{name}>{_SLOTS.get(name, '[a-z]+')})")
    return re.compile("".join(parts))


_PATTERNS = [(name, _pattern(wording)) for name, kind in KINDS.items() for wording in kind.wordings]


def normal(query: str) -> str:
    """Return a query in lower case without politeness, commas and final punctuation."""
    text = " ".join(query.lower().replace(",", " ").split()).rstrip(" .?!")
    while (shorter := _TAIL.sub("", _POLITE.sub("", text)).strip()) != text:
        text = shorter
    return text


def read_intent(query: str) -> Intent | None:
    """Return the intent of a query, or None if its wording is unknown. Guidance above the last line is skipped."""
    for text in dict.fromkeys((query, query.strip().rpartition("\n")[2])):
        plain = normal(text)
        for name, pattern in _PATTERNS:
            if match := pattern.fullmatch(plain):
                return Intent(name, match.groupdict())
        if (goal := read_goal(plain)) is not None:
            return Intent(APP, *goal)
    return None


def wordings_of(intent: Intent) -> int:
    return int(WRITTEN ** (1 + len(intent.links)))


def write_query(intent: Intent, wording: int) -> str:
    """Return an intent in the wording with this index, which must be below `wordings_of(intent)`."""
    if intent.links:
        each = [wording // WRITTEN**place % WRITTEN for place in range(1 + len(intent.links))]
        return write_goal(intent.slots, intent.links, each)
    return KINDS[intent.kind].wordings[wording % WRITTEN].format(**intent.slots)

"""Families of goals: a wording with slots, what fills the slots, the actions that follow from them, and how the answer
is read."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tests.llm.minds.world import Goal, Steps, World

Slots = dict[str, str]

WORDS = tuple(
    a + b
    for a in ("ka", "lo", "mi", "tre", "vu", "sha", "ber", "no")
    for b in ("ran", "dis", "fel", "gom", "put", "ziv", "tal", "que")
)
DRAWS_PER_FAMILY = 24


@dataclass(frozen=True)
class Family:
    """`draw` fills the slots of `wording`; `actions` follow from slots and opening; `read` gets the answer out of the
    observations.

    `needs`: a text that an opening must hold for the family to be of use there.
    """

    kind: str
    wording: str
    draw: Callable[[random.Random], Slots]
    actions: Callable[[Slots, str], Sequence[str]]
    read: Callable[[Slots, Sequence[str]], str | None] | None = None
    changes: bool = False
    needs: str = ""

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = re.split(r"\{(\w+)\}", self.wording)
        return re.compile(
            "".join(re.escape(part) if i % 2 == 0 else f"(?P<{part}>.+?)" for i, part in enumerate(parts))
        )

    def slots(self, query: str) -> Slots | None:
        """Return the slots of a query in this wording."""
        found = self._pattern.fullmatch(query.strip())
        return found.groupdict() if found is not None else None

    def goal(self, slots: Slots, opening: str) -> Goal:
        """Return the goal of some slots."""
        query = self.wording.format(**slots)
        return Goal(
            self.kind, query, tuple(self.actions(slots, opening)), asks=self.read is not None, changes=self.changes
        )


class FamiliesWorld(World):
    """A world whose goals are those of `families`."""

    families: tuple[Family, ...]

    def goals(self, opening: str, steps: Steps) -> list[Goal]:
        return list(_drawn(self, opening))

    def goal_of(self, query: str, opening: str, steps: Steps) -> Goal | None:
        for family in self.families:
            if (slots := family.slots(query)) is not None:
                return family.goal(slots, opening)
        return None

    def answer(self, goal: Goal, observations: Sequence[str]) -> str | None:
        for family in self.families:
            if family.kind == goal.kind and family.read is not None:
                return family.read(family.slots(goal.query) or {}, observations)
        return None


@lru_cache(maxsize=256)
def _drawn(world: FamiliesWorld, opening: str) -> tuple[Goal, ...]:
    """Return the goals of an opening, the same ones each time, those of one kind never together."""
    rng = random.Random(f"{world.env_type}-{opening}")
    useful = [family for family in world.families if family.needs in opening]
    goals = {
        goal.query: goal for _ in range(DRAWS_PER_FAMILY) for f in useful for goal in [f.goal(f.draw(rng), opening)]
    }
    return tuple(goals.values())


def nothing(rng: random.Random) -> Slots:
    """No slots."""
    return {}

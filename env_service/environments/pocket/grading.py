"""Grading by state alone.

A task passes if the episode was finished with `done`, the answer (if one is asked for) is right, every fact the
reference solution changed has its goal value, and no other fact changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from env_service.environments.pocket.world import Facts, PocketWorld, Row

Path = tuple[str | int, ...]
Change = tuple[Row | int | None, Row | int | None]


class Graded(Protocol):
    """Basis of a grade: the answer or None, and the facts before and after the reference solution."""

    @property
    def answer(self) -> str | None: ...

    @property
    def start(self) -> Facts: ...

    @property
    def goal(self) -> Facts: ...


@dataclass(frozen=True, slots=True)
class PocketCheck:
    """One condition at the end of an episode."""

    name: str
    passed: bool


def diff(before: Facts, after: Facts) -> dict[Path, Change]:
    """Return the differing facts, path -> (before, after); None means absent."""
    return {
        p: (before.get(p), after.get(p)) for p in sorted({*before, *after}, key=str) if before.get(p) != after.get(p)
    }


def same_answer(given: str | None, wanted: str) -> bool:
    return given is not None and given.strip().rstrip(".").strip().casefold() == wanted.casefold()


def checks(task: Graded, world: PocketWorld) -> list[PocketCheck]:
    """The task's checks in a world; the last one is that nothing else changed."""
    return _checks(task, world.tables.facts(), world.answer)


def _checks(task: Graded, now: Facts, answer: str | None) -> list[PocketCheck]:
    expected = diff(task.start, task.goal)
    out = [PocketCheck("finished", answer is not None)]
    if task.answer is not None:
        out.append(PocketCheck("answer", same_answer(answer, task.answer)))
    out += [
        PocketCheck(f"{' '.join(map(str, path))} is {_shown(goal)}", now.get(path) == goal)
        for path, (_, goal) in expected.items()
    ]
    out.append(PocketCheck("nothing else changed", set(diff(task.start, now)) <= set(expected)))
    return out


def _shown(value: Row | int | None) -> str:
    if value is None:
        return "gone"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def score(task: Graded, world: PocketWorld, *, sparse: bool = True) -> float:
    """Sparse: 1 if every check passes, else 0. Dense: the share of passed checks, scaled so that an immediate `done`
    gives 0."""
    results = [c.passed for c in checks(task, world)]
    if sparse:
        return float(all(results))
    idle = math.fsum(c.passed for c in _checks(task, task.start, "")) / len(results)
    return max(0.0, (math.fsum(results) / len(results) - idle) / (1.0 - idle))

"""Focus of a round of new tasks: which worlds are explored, and what for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from task_manager.settings import Focus


def seeds_in_turn(focus: Sequence[Focus]) -> tuple[str, ...]:
    """Return the worlds of several focuses, one of each in turn, so that a round that stops early had some of all."""
    rows = zip_longest(*(one.seeds for one in focus))
    return tuple(dict.fromkeys(seed for row in rows for seed in row if seed is not None))


def by_seed(focus: Iterable[Focus]) -> dict[str, Focus]:
    """Return the focus of each world, the first of several."""
    found: dict[str, Focus] = {}
    for one in focus:
        for seed in one.seeds:
            found.setdefault(seed, one)
    return found

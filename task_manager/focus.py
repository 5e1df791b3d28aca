"""Focus of a round: explored worlds and their weakness."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from task_manager.settings import Focus


def seeds_in_turn(focus: Sequence[Focus]) -> tuple[str, ...]:
    """Interleave the seeds of several focuses, so that a round that stops early covers all of them."""
    rows = zip_longest(*(one.seeds for one in focus))
    return tuple(dict.fromkeys(seed for row in rows for seed in row if seed is not None))


def by_seed(focus: Iterable[Focus]) -> dict[str, Focus]:
    found: dict[str, Focus] = {}
    for one in focus:
        for seed in one.seeds:
            found.setdefault(seed, one)
    return found

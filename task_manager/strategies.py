"""What an explorer is told of earlier tries: nothing (`random`, as in the paper), or what to stay away from
(`curious`).

A strategy keeps no file: it is told again of recorded explorations when a run is started again.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Protocol

from task_manager.actions import PlainFormat
from task_manager.settings import StrategySettings
from task_manager.world import World


class Strategy(Protocol):
    """Steers explorers; one object for all of an environment's explorations. `remembers`: whether what is recorded
    matters to it."""

    @property
    def remembers(self) -> bool: ...

    def record(self, world: World, action: str, *, refused: bool) -> None:
        """Take note of an action."""
        ...

    def tried(self, world: World) -> list[str]:
        """Return what the explorer of a world is to be shown of earlier tries, one line each."""
        ...


class RandomStrategy:
    """Every exploration for itself; variety comes from the temperature and from the worlds."""

    remembers = False

    def record(self, world: World, action: str, *, refused: bool) -> None:
        """Keep nothing."""

    def tried(self, world: World) -> list[str]:
        """Show nothing."""
        return []


class CuriousStrategy:
    """Steers towards actions that nobody tried.

    Two memories: of a world, the very actions taken there, since their answers are known; of the environment, how often
        each kind of
    action was taken in any world. A line reads `ACTION` or `KIND (n times)`. The most frequent kinds come first, then
    the latest actions of this world; `memory_size` bounds both together. A refused action is not counted as a try of
    its kind: it may work elsewhere.
    """

    remembers = True

    def __init__(self, fmt: PlainFormat, memory_size: int) -> None:
        self._format = fmt
        self._memory_size = memory_size
        self._kinds: Counter[str] = Counter()
        self._worlds: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def record(self, world: World, action: str, *, refused: bool) -> None:
        """Take note of an action in a world."""
        line = re.sub(r"\s+", " ", action).strip()
        seen = self._worlds[world.seed_task_id]
        seen.pop(line, None)
        seen[line] = None
        if len(seen) > self._memory_size:
            del seen[next(iter(seen))]
        if not refused:
            self._kinds[self._format.signature(action)] += 1

    def tried(self, world: World) -> list[str]:
        """Return the kinds that are tried more than the average, and this world's actions."""
        kinds = [f"{kind} ({count} times)" for kind, count in self._overdone()][: self._memory_size // 2]
        actions = list(self._worlds[world.seed_task_id])[-(self._memory_size - len(kinds)) :]
        return [*kinds, *actions]

    def _overdone(self) -> list[tuple[str, int]]:
        if not self._kinds:
            return []
        average = self._kinds.total() / len(self._kinds)
        return [(kind, count) for kind, count in self._kinds.most_common() if count > average]


def make_strategy(name: str, fmt: PlainFormat, settings: StrategySettings) -> Strategy:
    """Return the strategy of that name; raises ValueError if there is none."""
    if name == "random":
        return RandomStrategy()
    if name == "curious":
        return CuriousStrategy(fmt, settings.memory_size)
    raise ValueError(f"there is no exploration strategy {name!r}; strategies are random, curious")

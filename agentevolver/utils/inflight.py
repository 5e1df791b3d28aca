"""Registry of calls in flight, read by the watchdog."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# label -> (number of calls in flight, age of the oldest in seconds)
Waiting = dict[str, tuple[int, float]]
SHOWN = 4


class Board:
    """Calls in flight of one event loop; can be read from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[object, tuple[str, float]] = {}

    @contextmanager
    def call(self, label: str) -> Iterator[None]:
        token = object()
        self._calls[token] = (label, self._clock())
        try:
            yield
        finally:
            del self._calls[token]

    def waiting(self) -> Waiting:
        now = self._clock()
        ages: dict[str, list[float]] = defaultdict(list)
        # A copy: the event loop's thread may change the dict meanwhile.
        for label, since in list(self._calls.values()):
            ages[label].append(now - since)
        return {label: (len(all_of_it), max(all_of_it)) for label, all_of_it in ages.items()}


BOARD = Board()


class WatchedCalls:
    """Proxy that registers calls of coroutine methods on a board, as `<what> <method>`."""

    def __init__(self, target: Any, what: str, methods: Iterable[str], board: Board = BOARD) -> None:
        self._target = target
        for name in methods:
            setattr(self, name, _noted(getattr(target, name), f"{what} {name}", board))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def _noted(method: Callable[..., Awaitable[Any]], label: str, board: Board) -> Callable[..., Awaitable[Any]]:
    async def noted(*arguments: Any, **options: Any) -> Any:
        with board.call(label):
            return await method(*arguments, **options)

    return noted


def merged(boards: Iterable[Mapping[str, tuple[int, float]]]) -> Waiting:
    out: Waiting = {}
    for board in boards:
        for label, (count, oldest) in board.items():
            before, age = out.get(label, (0, 0.0))
            out[label] = (before + count, max(age, oldest))
    return out


def described(waiting: Mapping[str, tuple[int, float]]) -> str:
    ordered = sorted(waiting.items(), key=lambda item: -item[1][1])
    return ", ".join(f"{label} x{count} (for {oldest:.0f} s)" for label, (count, oldest) in ordered[:SHOWN])

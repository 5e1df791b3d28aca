"""Adaptive concurrency of one server in one process: additive increase, halved by a rate limit, never under one call.

As TCP's congestion window: calls that were sent before the latest cut say nothing of what it has led to, so that one
volley of refusals cuts once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Window:
    """How many calls may be out at once; not bounded until the first refusal, and no more once it has grown beyond
    `ceiling`."""

    def __init__(self, ceiling: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.ceiling = ceiling
        self.size = math.inf
        self._clock = clock
        self._cut_at = -math.inf
        self._out = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place in the window and hold it, first come, first served."""
        if self._out >= self._allowed or self._waiting:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            self._let_in()
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave()
                else:
                    self._waiting.remove(turn)
                raise
        else:
            self._out += 1
        try:
            yield
        finally:
            self._leave()

    def refused(self, sent_at: float) -> None:
        """Halve the window, unless the refused call was sent (by the window's clock) before it was cut last."""
        if sent_at >= self._cut_at:
            self.size = max(1.0, min(self.size, max(self._out, 1)) / 2.0)
            self._cut_at = self._clock()

    def answered(self) -> None:
        """Let the window grow by one call for each window of answers."""
        if self.size < math.inf:
            self.size += 1.0 / self.size
            if self.size >= self.ceiling:
                self.size = math.inf
            self._let_in()

    @property
    def _allowed(self) -> float:
        return math.inf if self.size == math.inf else int(self.size)

    def _leave(self) -> None:
        self._out -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._out < self._allowed:
            turn = self._waiting.popleft()
            if not turn.done():
                self._out += 1
                turn.set_result(None)

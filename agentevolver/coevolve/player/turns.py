"""Turns of checkpoints: an engine holds the weights of one, and those who want another wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


class Turns:
    """Queue for an engine: lets those in who want the checkpoint that is loaded,
    and changes it when somebody else's turn comes; for one event loop.

    A change waits for those inside. Once somebody waits for another checkpoint, whoever comes waits as well, so nobody
    waits longer than for those inside and one turn of each checkpoint that was asked for before. All who wait for one
    checkpoint have its turn together.

    Args:
        change: loads a checkpoint while nobody is inside. What it raises reaches all who waited for that one; then none
            counts as loaded.
        loaded: the checkpoint that is loaded already.
    """

    def __init__(self, change: Callable[[str], Awaitable[None]], loaded: str | None = None) -> None:
        self._change = change
        self._loaded = loaded
        self._inside = 0
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._changing: asyncio.Task[None] | None = None
        self.changes = 0

    @property
    def loaded(self) -> str | None:
        """The checkpoint that is loaded, None while that is changed or after it failed."""
        return self._loaded

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return sum(not turn.done() for turns in self._waiting.values() for turn in turns)

    @asynccontextmanager
    async def of(self, checkpoint: str) -> AsyncIterator[None]:
        """Hold a turn of a checkpoint; raises what loading it raises."""
        await self._enter(checkpoint)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, checkpoint: str) -> None:
        if checkpoint == self._loaded and not self._waiting:
            self._inside += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(checkpoint, []).append(turn)
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave()  # let in, and gone before it knew
            raise

    def _leave(self) -> None:
        self._inside -= 1
        self._next()

    def _next(self) -> None:
        if self._waiting and not self._inside and self._changing is None:
            self._changing = asyncio.create_task(self._turn(next(iter(self._waiting))))

    async def _turn(self, checkpoint: str) -> None:
        """Give the next checkpoint its turn."""
        error: BaseException | None = None
        if checkpoint != self._loaded and any(not turn.done() for turn in self._waiting[checkpoint]):
            self._loaded = None
            try:
                await self._change(checkpoint)
                self._loaded = checkpoint
                self.changes += 1
            except (Exception, asyncio.CancelledError) as raised:
                error = raised
        for turn in self._waiting.pop(checkpoint):
            if turn.done():
                continue
            if error is not None:
                turn.set_exception(error)
            else:
                self._inside += 1
                turn.set_result(None)
        self._changing = None
        self._next()

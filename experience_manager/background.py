"""Distillation in the background: a bounded queue of groups, a few at work, results straight into the pool.

Groups are distilled several at a time and kept one after the other, in the order in which they came, so that the pool
does not depend on which of them was quicker. `submit` never waits: what does not fit is left out and counted. Whatever
goes wrong with a group is counted and logged; the next group goes on. When the budget for models is spent, what waits
is dropped and what comes later is refused.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from experience_manager.attempts import Group
from experience_manager.distill import Distilled

logger = logging.getLogger(__name__)
# Distils a group of a training step.
Work = Callable[[Group, int | None], Awaitable[Distilled]]
# Stores what came of it; the counts are all that is left to report.
Keep = Callable[[Distilled], Awaitable[None]]
# Says whether a group was distilled with nothing missing.
Receipt = asyncio.Future[bool]


class Background:
    """Runs `work` on groups, `concurrency` at a time, at most `capacity` waiting, and `keep` on the results. Belongs to
    one event loop."""

    def __init__(self, work: Work, keep: Keep | None = None, *, capacity: int, concurrency: int) -> None:
        self._work = work
        self._keep = keep
        self._last: asyncio.Event | None = None
        self._concurrency = concurrency
        self._queue: asyncio.Queue[tuple[Group, int | None, Receipt]] = asyncio.Queue(capacity)
        self._workers: list[asyncio.Task[None]] = []
        self._at_work = 0
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0
        self.exhausted = False

    @property
    def waiting(self) -> int:
        """How many groups wait."""
        return self._queue.qsize()

    def submit(self, groups: Iterable[Group], step: int | None = None) -> int:
        """Queue groups and return how many were taken."""
        taken = 0
        for group in groups:
            if self.exhausted:
                self.counts["over_budget"] += 1
                continue
            try:
                self._queue.put_nowait((group, step, _receipt()))
                taken += 1
            except asyncio.QueueFull:
                self.counts["dropped"] += 1
        self._ensure_workers()
        return taken

    async def put(self, group: Group, step: int | None = None) -> Receipt:
        """Queue a group, waiting for room; for warm starts, which may wait.

        Returns what comes to say whether the group was distilled and kept with nothing missing that another time might
        bring.
        """
        self._ensure_workers()
        receipt = _receipt()
        if self.exhausted:
            self.counts["over_budget"] += 1
            receipt.set_result(False)
        else:
            await self._queue.put((group, step, receipt))
        return receipt

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until everything that was queued is done; returns whether it was in time."""
        try:
            await asyncio.wait_for(self._queue.join(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def close(self, timeout_s: float = 0.0) -> None:
        """Finish what can be finished in time, and stop."""
        if timeout_s > 0:
            await self.drain(timeout_s)
        left = self.waiting + self._at_work
        if left:
            self.counts["dropped"] += left
            logger.warning("%d groups were not distilled any more", left)
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        self._workers = []

    def _ensure_workers(self) -> None:
        self._workers = [worker for worker in self._workers if not worker.done()]
        missing = self._concurrency - len(self._workers)
        self._workers += [asyncio.create_task(self._serve()) for _ in range(missing)]

    async def _distilled(self, group: Group, step: int | None) -> Distilled | None:
        """Return what a group teaches, None (and a count) if that could not be found out."""
        if self.exhausted:
            self.counts["over_budget"] += 1
            return None
        try:
            distilled = await self._work(group, step)
        except Exception as error:
            self._failed(error)
            return None
        self.exhausted = self.exhausted or distilled.exhausted
        return distilled

    async def _kept(self, distilled: Distilled) -> bool:
        try:
            if self._keep is not None:
                await self._keep(distilled)
        except Exception as error:
            self._failed(error)
            return False
        self.counts.update(distilled.counts)
        return not distilled.interrupted

    def _failed(self, error: Exception) -> None:
        # Whatever it is, it may cost this group and not the training: it is counted and told.
        self.counts["failed_groups"] += 1
        logger.warning("a group could not be distilled: %s: %s", type(error).__name__, error)

    async def _serve(self) -> None:
        while True:
            group, step, receipt = await self._queue.get()
            whole = False
            # Nothing is awaited in between: workers get groups, hence their turns, in the order of the queue.
            before, turn_is_over = self._last, asyncio.Event()
            self._last = turn_is_over
            started = time.perf_counter()
            self._at_work += 1
            try:
                distilled = await self._distilled(group, step)
                if before is not None:
                    await before.wait()
                if distilled is not None:
                    whole = await self._kept(distilled)
            finally:
                if not receipt.done():
                    receipt.set_result(whole)
                turn_is_over.set()
                self._at_work -= 1
                self.seconds += time.perf_counter() - started
                self._queue.task_done()


def _receipt() -> Receipt:
    return asyncio.get_running_loop().create_future()

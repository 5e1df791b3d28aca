"""Distillation in the background: a bounded queue of groups, a few at work, results straight into the pool.

`submit` never waits: what does not fit is left out and counted. Whatever goes wrong with a group is counted and logged; the next group goes
on. When the budget for models is spent, what waits is dropped and what comes later is refused.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from experience_manager.summarize import Distilled
from experience_manager.trajectories import Group

logger = logging.getLogger(__name__)
# Distils a group of a training step and stores what came of it; the counts are all that is left to report.
Work = Callable[[Group, int | None], Awaitable[Distilled]]


class Background:
    """Runs `work` on groups, `concurrency` at a time, at most `capacity` waiting. Belongs to one event loop."""

    def __init__(self, work: Work, *, capacity: int, concurrency: int) -> None:
        self._work = work
        self._concurrency = concurrency
        self._queue: asyncio.Queue[tuple[Group, int | None]] = asyncio.Queue(capacity)
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
                self._queue.put_nowait((group, step))
                taken += 1
            except asyncio.QueueFull:
                self.counts["dropped"] += 1
        self._ensure_workers()
        return taken

    async def put(self, group: Group, step: int | None = None) -> None:
        """Queue a group, waiting for room; for warm starts, which may wait."""
        self._ensure_workers()
        if self.exhausted:
            self.counts["over_budget"] += 1
        else:
            await self._queue.put((group, step))

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

    async def _serve(self) -> None:
        while True:
            group, step = await self._queue.get()
            started = time.perf_counter()
            self._at_work += 1
            try:
                if self.exhausted:
                    self.counts["over_budget"] += 1
                    continue
                distilled = await self._work(group, step)
                self.counts.update(distilled.counts)
                self.exhausted = self.exhausted or distilled.exhausted
            except Exception as error:
                # Whatever it is, it may cost this group and not the training: it is counted and told.
                self.counts["failed_groups"] += 1
                logger.warning("a group could not be distilled: %s: %s", type(error).__name__, error)
            finally:
                self._at_work -= 1
                self.seconds += time.perf_counter() - started
                self._queue.task_done()

"""Shared hosting: a few processes, each with many instances."""

from __future__ import annotations

import asyncio
import logging
import time

from env_service.errors import Unavailable
from env_service.hosting.cluster import HostFailed, HostHandle
from env_service.hosting.pool import (
    DIAL_TIMEOUT_S,
    SPREAD_S,
    WAIT_FOR_WORKER_S,
    Backoff,
    Site,
    Worker,
    WorkerPool,
    describe_failure,
    happened,
    watched,
)

logger = logging.getLogger(__name__)

STUCK_LIMIT = 8
KILL_TIMEOUT_S = 2.0
YOUNG_S = 5.0


class SharedPool(WorkerPool):
    def __init__(self, site: Site, first: HostHandle | None, hosts: int) -> None:
        super().__init__(site, first)
        self._size = hosts
        self._workers: list[Worker] = []
        self._added = asyncio.Event()
        self._missing = asyncio.Event()
        self._died_young = False
        self._keeper: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        return any(not worker.retired for worker in self._workers)

    @property
    def workers(self) -> list[Worker]:
        return list(self._workers)

    async def start(self) -> None:
        await asyncio.gather(*(self._add() for _ in range(self._size)))
        self._keeper = watched(self._keep(), f"keep {self.spec.env_type}")

    async def acquire(self, slot: str) -> Worker:
        for _ in range(2):
            takers = [worker for worker in self._workers if not worker.retired]
            if takers:
                # The process with the fewest instances.
                worker = min(takers, key=lambda candidate: len(candidate.slots))
                worker.slots.add(slot)
                return worker
            self._added.clear()
            try:
                await asyncio.wait_for(self._added.wait(), WAIT_FOR_WORKER_S)
            except TimeoutError:
                break
        raise Unavailable(
            f"no host of environment {self.spec.env_type!r} is up at the moment; try again", retry_after_s=2.0
        )

    def release(self, worker: Worker, slot: str) -> None:
        worker.slots.discard(slot)
        # Hung calls hold threads for ever: the process takes no new instances and ends after its last one.
        if worker.link.stuck >= STUCK_LIMIT and not worker.retired:
            logger.error("host %s has %d calls that do not end; it is being replaced", worker.name, worker.link.stuck)
            self._retire(worker)
            self._missing.set()
        elif worker.retired and not worker.slots:
            worker.link.close()

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.link.on_lost = None
            worker.host.kill()
        if workers:  # kill first: Ray reports an actor that ends by itself as a failure
            await asyncio.wait(
                [asyncio.ensure_future(worker.link.closed.wait()) for worker in workers], timeout=KILL_TIMEOUT_S
            )
        for worker in workers:
            worker.link.close()

    async def _keep(self) -> None:
        backoff = Backoff()
        while True:
            missing = self._size - sum(not worker.retired for worker in self._workers)
            if missing <= 0:
                self._missing.clear()
                if not await happened(self._missing, SPREAD_S):
                    await self._spread()
                continue
            results = await asyncio.gather(*(self._add() for _ in range(missing)), return_exceptions=True)
            errors = [result for result in results if isinstance(result, BaseException)]
            for error in errors:
                logger.error("cannot replace a host of environment %r: %s", self.spec.env_type, error)
            await asyncio.sleep(backoff.next_s(bool(errors) or self._died_young))
            self._died_young = False

    async def _spread(self) -> None:
        takers = [worker for worker in self._workers if not worker.retired]
        # A node that joined or came back has fewer hosts: start one there, and let one of the crowded node end after
        # its last instance.
        node = await self._crowded([worker.host for worker in takers])
        if node is None:
            return
        try:
            await self._add()
        except HostFailed as error:
            logger.warning("cannot move a host of environment %r to another node: %s", self.spec.env_type, error)
            return
        self._retire(min((w for w in takers if w.host.node == node), key=lambda worker: len(worker.slots)))

    def _retire(self, worker: Worker) -> None:
        worker.retired = True
        if not worker.slots:
            worker.link.close()

    async def _add(self) -> None:
        host = await self._new_host()
        names, (dialed,) = self._expected(1)
        try:
            await host.serve(await self._address(host), *names[0])
            link = await asyncio.wait_for(dialed, DIAL_TIMEOUT_S)
        except (HostFailed, TimeoutError, OSError) as error:
            self._forget(names)
            host.kill()
            raise describe_failure(error) from error
        worker = Worker(link, host)
        self._workers.append(worker)
        link.on_lost = lambda: self._remove(worker)
        if not link.open:
            self._remove(worker)
        self._added.set()

    def _remove(self, worker: Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            self._died_young |= time.monotonic() - worker.started_at < YOUNG_S
            worker.host.kill()
            self._missing.set()
            self._on_lost(worker)

"""Isolated hosting: one process per instance, from a warm stock.

Each node has a fork host (a host actor with a fork server). A worker serves one instance and ends with it, so damage
that an agent's code does to its process reaches no other episode.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from env_service.errors import Unavailable
from env_service.hosting.cluster import HostFailed, HostHandle
from env_service.hosting.links import Link
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

BATCH = 16
REAP_AFTER_S = 0.5


class ForkHost:
    """A host that forks workers. `suspect`: no answer since a worker was lost; `retired`: forks no more."""

    def __init__(self, host: HostHandle) -> None:
        self.host = host
        self.workers: set[Worker] = set()
        self.released: list[str] = []
        self.suspect = False
        self.retired = False
        self.gone = asyncio.Event()


class IsolatedPool(WorkerPool):
    def __init__(self, site: Site, first: HostHandle | None, fork_hosts: int, warm: int) -> None:
        super().__init__(site, first)
        self._size = fork_hosts
        self._target = warm
        self._fork_hosts: list[ForkHost] = []
        self._warm: deque[Worker] = deque()
        self._waiting: deque[asyncio.Future[Worker]] = deque()
        self._failed = False
        self._demand = asyncio.Event()
        self._ended = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._reaper: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether a process is warm, or the last attempt to fork one succeeded."""
        return bool(self._warm) or not self._failed

    @property
    def workers(self) -> list[Worker]:
        return [worker for fork_host in self._fork_hosts for worker in fork_host.workers]

    async def start(self) -> None:
        await asyncio.gather(*(self._add_fork_host() for _ in range(self._size)))
        await self._grow(self._target)
        self._keeper = watched(self._keep(), f"keep {self.spec.env_type}")
        self._reaper = watched(self._reap(), f"reap {self.spec.env_type}")

    async def acquire(self, slot: str) -> Worker:
        worker = self._warm.popleft() if self._warm else None
        self._demand.set()
        if worker is None:
            future: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                worker = await asyncio.wait_for(future, WAIT_FOR_WORKER_S)
            except TimeoutError:
                raise Unavailable(
                    f"no process for environment {self.spec.env_type!r} could be started within {WAIT_FOR_WORKER_S:g} "
                    "s; try again",
                    retry_after_s=2.0,
                ) from None
        worker.slots.add(slot)
        return worker

    def release(self, worker: Worker, slot: str) -> None:
        worker.slots.discard(slot)
        # The worker ends when its connection closes; `_reap` kills it a moment later if it hangs.
        worker.link.close()

    async def stop(self) -> None:
        tasks = {task for task in (self._keeper, self._reaper) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for future in self._waiting:
            future.cancel()
        for worker in self.workers:
            worker.link.on_lost = None
            worker.link.close()
        for fork_host in self._fork_hosts:
            fork_host.host.kill()
        self._fork_hosts.clear()
        self._warm.clear()

    @property
    def _forking(self) -> list[ForkHost]:
        return [fork_host for fork_host in self._fork_hosts if not fork_host.retired]

    async def _spread(self) -> None:
        forking = self._forking
        # A node that joined or came back has fewer fork hosts: move one there, and let one of the crowded node fork no
        # more.
        node = await self._crowded([fork_host.host for fork_host in forking])
        if node is None:
            return
        try:
            await self._add_fork_host()
        except HostFailed as error:
            logger.warning("cannot move a fork host of environment %r: %s", self.spec.env_type, error)
            return
        surplus = next(fork_host for fork_host in forking if fork_host.host.node == node)
        surplus.retired = True
        for worker in [worker for worker in self._warm if worker.host is surplus.host]:
            self._warm.remove(worker)
            worker.link.close()
        self._demand.set()

    async def _keep(self) -> None:
        backoff = Backoff()
        while True:
            self._demand.clear()
            missing = self._target + len(self._waiting) - len(self._warm)
            if missing <= 0:
                if not await happened(self._demand, SPREAD_S):
                    await self._spread()
                continue
            await asyncio.sleep(backoff.next_s(self._failed))
            self._failed = False
            try:
                await self._grow(min(missing, BATCH))
            except HostFailed as error:
                logger.error("cannot start processes for environment %r: %s", self.spec.env_type, error)
                self._failed = True

    async def _grow(self, count: int) -> None:
        """Fork `count` workers in the fork host with the fewest workers; raise HostFailed if none dialled in."""
        if len(self._forking) < self._size:
            await self._add_fork_host()
        fork_host = min(self._forking, key=lambda candidate: (candidate.suspect, len(candidate.workers)))
        names, dialed = self._expected(count)
        try:
            await fork_host.host.spawn(await self._address(fork_host.host), names)
        except HostFailed:
            self._forget(names)
            self._drop(fork_host)
            raise
        arrived = await self._any_arrived(fork_host, dialed)
        self._forget(names)
        if not arrived:
            if not fork_host.workers:
                self._drop(fork_host)
            raise HostFailed(f"none of {count} forked processes connected within {DIAL_TIMEOUT_S:g} s")

    async def _any_arrived(self, fork_host: ForkHost, dialed: list[asyncio.Future[Link]]) -> bool:
        welcomes = [asyncio.create_task(self._welcome(fork_host, future)) for future in dialed]
        # Until all forked workers have arrived, time is up, or the fork host is gone.
        ends: list[asyncio.Task[Any]] = [
            asyncio.create_task(asyncio.wait(welcomes)),
            asyncio.create_task(fork_host.gone.wait()),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*ends, *welcomes):
                task.cancel()
        return any(task.result() for task in welcomes if task.done() and not task.cancelled())

    async def _welcome(self, fork_host: ForkHost, dialed: asyncio.Future[Link]) -> bool:
        try:
            link = await asyncio.wait_for(dialed, DIAL_TIMEOUT_S)
        except TimeoutError:
            return False
        worker = Worker(link, fork_host.host)
        fork_host.workers.add(worker)
        link.on_lost = lambda: self._remove(fork_host, worker)
        if not link.open:
            self._remove(fork_host, worker)
            return False
        self._offer(worker)
        return True

    def _offer(self, worker: Worker) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(worker)
                return
        self._warm.append(worker)

    def _remove(self, fork_host: ForkHost, worker: Worker) -> None:
        fork_host.workers.discard(worker)
        fork_host.released.append(worker.name)
        fork_host.suspect |= bool(worker.slots)
        self._ended.set()
        if worker in self._warm:
            self._warm.remove(worker)
            self._failed = True  # it died before its first call: forking more at once would only burn CPU
        self._demand.set()
        self._on_lost(worker)

    async def _add_fork_host(self) -> None:
        host = await self._new_host()
        try:
            await host.start_fork_server()
        except HostFailed as error:
            host.kill()
            raise describe_failure(error) from error
        self._fork_hosts.append(ForkHost(host))

    def _drop(self, fork_host: ForkHost) -> None:
        if fork_host in self._fork_hosts:
            self._fork_hosts.remove(fork_host)
            fork_host.gone.set()
            fork_host.host.kill()

    async def _reap(self) -> None:
        while True:
            await self._ended.wait()
            # Released workers end by themselves unless they hang. Waiting collects many into one request per fork host.
            await asyncio.sleep(REAP_AFTER_S)
            self._ended.clear()
            await asyncio.gather(*(self._reap_in(fork_host) for fork_host in list(self._fork_hosts)))

    async def _reap_in(self, fork_host: ForkHost) -> None:
        names, fork_host.released = fork_host.released, []
        try:
            if names:
                await fork_host.host.reap(names)
                fork_host.suspect = False
        except HostFailed as error:
            logger.error("the fork host of environment %r is gone: %s", self.spec.env_type, error)
            self._drop(fork_host)
            self._demand.set()
            return
        if fork_host.retired and not fork_host.workers:
            self._drop(fork_host)

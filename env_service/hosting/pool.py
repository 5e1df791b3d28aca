"""Worker pool of one environment: the base of shared and isolated pools.

A pool hands out workers with a slot for an instance. When a worker's process ends, its owner is told once, and only the
instances in it are lost. Pools replace ended processes, with longer waits after failures in a row.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from env_service.hosting.cluster import HostFailed, HostHandle, Launcher
from env_service.hosting.host import Description, HostSpec
from env_service.hosting.links import Link, LinkServer
from env_service.hosting.wire import Address

logger = logging.getLogger(__name__)

DIAL_TIMEOUT_S = 30.0
WAIT_FOR_WORKER_S = 10.0
# Seconds between looks for a node with fewer hosts.
SPREAD_S = 15.0
BACKOFF_S = (0.1, 0.5, 2.0, 5.0, 15.0, 30.0)


class Worker:
    """A process that holds instances."""

    def __init__(self, link: Link, host: HostHandle) -> None:
        self.link = link
        self.host = host
        self.slots: set[str] = set()
        self.started_at = time.monotonic()
        self.retired = False

    @property
    def name(self) -> str:
        """The worker's id in logs and listings."""
        return self.link.worker


LostCallback = Callable[[Worker], None]


@dataclass(frozen=True, slots=True)
class Site:
    """Inputs of a pool."""

    spec: HostSpec  # what to host
    description: Description
    launcher: Launcher  # starts the hosts
    link_server: LinkServer  # where workers dial in
    on_lost: LostCallback  # called once when a worker's process ends


@dataclass(slots=True)
class Backoff:
    """Waits after failures in a row."""

    failures: int = field(default=0)

    def next_s(self, failed: bool) -> float:
        if not failed:
            self.failures = 0
            return 0.0
        self.failures += 1
        return BACKOFF_S[min(self.failures, len(BACKOFF_S)) - 1]


class WorkerPool(ABC):
    def __init__(self, site: Site, first: HostHandle | None) -> None:
        self.spec = site.spec
        self.description = site.description
        self._launcher = site.launcher
        self._link_server = site.link_server
        self._on_lost = site.on_lost
        self._first = first
        self._numbers = itertools.count()

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether an instance can be created now, or within moments."""

    @property
    @abstractmethod
    def workers(self) -> list[Worker]: ...

    @abstractmethod
    async def start(self) -> None:
        """Return when instances can be created; raise HostFailed."""

    @abstractmethod
    async def acquire(self, slot: str) -> Worker:
        """Return a worker that holds this slot; raise Unavailable."""

    @abstractmethod
    def release(self, worker: Worker, slot: str) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    async def _new_host(self) -> HostHandle:
        # The first host was started to read the class's declaration; use it before new ones.
        host, self._first = self._first, None
        return host if host is not None else await self._launcher.launch(self.spec)

    async def _crowded(self, hosts: Sequence[HostHandle]) -> str | None:
        """Return a node with too many of these hosts, or None if they are spread well or Ray does not answer."""
        try:
            for node in dict.fromkeys(host.node for host in hosts):
                if await self._launcher.crowded(node):
                    return node
        except HostFailed as error:
            logger.warning("cannot compare the nodes for hosts of environment %r: %s", self.spec.env_type, error)
        return None

    async def _address(self, host: HostHandle) -> Address:
        if self._launcher.is_remote(host.node):
            return await self._link_server.remote(self._launcher.interface)
        return self._link_server.local

    def _expected(self, count: int) -> tuple[list[tuple[str, str]], list[asyncio.Future[Link]]]:
        """Announce new workers: return their names and secrets, and futures of their connections."""
        names, dialed = [], []
        for _ in range(count):
            name = f"{self.spec.env_type}-{next(self._numbers)}-{secrets.token_hex(2)}"
            secret, future = self._link_server.expect(name)
            names.append((name, secret))
            dialed.append(future)
        return names, dialed

    def _forget(self, names: Sequence[tuple[str, str]]) -> None:
        for name, _ in names:
            self._link_server.forget(name)


def describe_failure(error: BaseException) -> HostFailed:
    return error if isinstance(error, HostFailed) else HostFailed(str(error) or type(error).__name__)


async def happened(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event; False if it did not happen in time."""
    # Not `wait_for`: in Python 3.11 it swallows a cancellation that coincides with the event.
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting}, timeout=timeout_s)
        return event.is_set()
    finally:
        waiting.cancel()


def watched(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Run background work that must not end by itself; an end is logged."""

    def report(task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            logger.critical("background work %r ended; restart the service", name, exc_info=task.exception())

    task = asyncio.create_task(work, name=name)
    task.add_done_callback(report)
    return task

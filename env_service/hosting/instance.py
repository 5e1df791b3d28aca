"""Instance: one open episode in the service, with its turn-taking, idle time and step ledger."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from env_service.errors import InstanceLost, ServiceError, StepOutOfOrder, UnknownInstance
from env_service.hosting.pool import Worker


@dataclass(slots=True)
class StepLedger:
    """The last numbered step of an instance. Each number is executed at most once: the same number again gets the same
    answer."""

    last: int = -1
    answer: bytes | ServiceError | None = None  # JSON of the reply, or the failure

    def recall(self, index: int) -> bytes | None:
        """Return the stored answer (or raise the stored error) if `index` is the last number, None if it is the next
        one.

        Raises StepOutOfOrder for any other number.
        """
        if index == self.last + 1:
            return None
        if index != self.last:
            raise StepOutOfOrder(
                f"step_index {index} is out of order: the last one was {self.last}, so send {self.last + 1}"
                + (f", or {self.last} to get its reply again" if self.last >= 0 else "")
            )
        if isinstance(self.answer, ServiceError):
            raise self.answer.with_traceback(None)
        return self.answer

    def record(self, index: int, answer: bytes | ServiceError) -> None:
        self.last, self.answer = index, answer


_slots = itertools.count()


class Instance:
    """An instance from its create to its release. Calls run one at a time, in order of arrival."""

    def __init__(self, instance_id: str, env_type: str, task_id: str, create_key: str | None) -> None:
        self.instance_id = instance_id
        self.slot = str(next(_slots))
        self.env_type = env_type
        self.task_id = task_id
        self.create_key = create_key
        self.created: asyncio.Task[bytes] | None = None
        self.worker: Worker | None = None
        self.ledger = StepLedger()
        self.steps = 0
        self.lost: InstanceLost | None = None
        self.closing = False
        self.started_at = time.monotonic()
        self.last_used = self.started_at
        self._calls = 0
        self._lock = asyncio.Lock()

    @property
    def busy(self) -> bool:
        """Whether a call runs or waits. A busy instance is never idle, however long the call takes."""
        return self._calls > 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Worker]:
        """Wait for the instance's turn and yield the worker; raises if a call is impossible."""
        self._calls += 1
        try:
            async with self._lock:
                if self.closing:
                    raise UnknownInstance(f"instance {self.instance_id!r} has been released")
                if self.lost is not None:
                    raise self.lost.with_traceback(None)
                if self.worker is None:
                    raise UnknownInstance(f"instance {self.instance_id!r} is still being created")
                yield self.worker
        finally:
            self._calls -= 1
            self.last_used = time.monotonic()

    @asynccontextmanager
    async def last_turn(self, timeout_s: float) -> AsyncIterator[bool]:
        """Refuse new calls and wait for the running one; yields whether it ended in time."""
        self.closing = True
        try:
            await asyncio.wait_for(self._lock.acquire(), timeout_s)
        except TimeoutError:
            yield False
            return
        try:
            yield True
        finally:
            self._lock.release()

    def facts(self) -> dict[str, Any]:
        now = time.monotonic()
        return {
            "instance_id": self.instance_id,
            "env_type": self.env_type,
            "task_id": self.task_id,
            "state": "lost" if self.lost else "creating" if self.worker is None else "busy" if self.busy else "open",
            "worker": self.worker.name if self.worker else None,
            "pid": self.worker.link.pid if self.worker else None,
            "steps": self.steps,
            "age_s": round(now - self.started_at, 3),
            "idle_s": 0.0 if self.busy else round(now - self.last_used, 3),
        }

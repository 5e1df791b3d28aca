"""Pauses of the policy's engine, as seen by one worker process.

In runs whose rollouts continue across updates, the engine sleeps during an update (all calls wait) and serves only
validation during a validation (training calls wait). Pauses do not count as a call's time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# Interval at which a paused call is checked.
LOOK_S = 0.1


class EnginePause:
    """State of the engine's pauses, for one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asleep = self._validating = False
        self._changed = asyncio.Event()
        # For training (False) and validation calls: seconds of earlier pauses, and the start of the current one.
        self._passed = {False: 0.0, True: 0.0}
        self._since: dict[bool, float | None] = {False: None, True: None}

    def set(self, *, asleep: bool | None = None, validating: bool | None = None) -> None:
        """Set whether the engine sleeps, and whether validation has it to itself. None changes nothing."""
        self._asleep = self._asleep if asleep is None else asleep
        self._validating = self._validating if validating is None else validating
        now = self._clock()
        for validation in (False, True):
            since = self._since[validation]
            if self.is_on(validation=validation) and since is None:
                self._since[validation] = now
            elif not self.is_on(validation=validation) and since is not None:
                self._passed[validation] += now - since
                self._since[validation] = None
        self._changed.set()
        self._changed = asyncio.Event()

    def is_on(self, *, validation: bool) -> bool:
        return self._asleep or (self._validating and not validation)

    def seconds(self, *, validation: bool) -> float:
        """Return the total seconds of all pauses so far."""
        since = self._since[validation]
        return self._passed[validation] + (0.0 if since is None else self._clock() - since)

    async def over(self, *, validation: bool) -> None:
        while self.is_on(validation=validation):
            await self._changed.wait()

    async def within(self, call: Coroutine[Any, Any, T], timeout_s: float, *, validation: bool) -> T:
        """Await a call for at most `timeout_s`, pauses excluded. On TimeoutError the call is cancelled."""
        began, paused = self._clock(), self.seconds(validation=validation)
        task = asyncio.ensure_future(call)
        try:
            while True:
                spent = self._clock() - began - (self.seconds(validation=validation) - paused)
                left = timeout_s - spent
                if left <= 0 and not self.is_on(validation=validation):
                    raise TimeoutError
                done, _ = await asyncio.wait({task}, timeout=max(left, LOOK_S))
                if done:
                    return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})


PAUSE = EnginePause()
"""The pauses of this process."""

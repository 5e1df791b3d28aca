"""Retry policy of all service clients: exponential backoff with full jitter, bounded by tries and time.

Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass


def full_jitter(failures: int, *, first_wait_s: float, max_wait_s: float, asked_s: float | None = None) -> float:
    """Return the seconds to wait: uniform in 0..min(max_wait_s, first_wait_s * 2**(failures-1)). If a server requested
    a wait (`asked_s`): that, plus a tenth of the jitter."""
    drawn = random.uniform(0.0, min(max_wait_s, first_wait_s * 2.0 ** min(failures - 1, 64)))
    # Clients must not all return at once.
    return drawn if asked_s is None else asked_s + 0.1 * drawn


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """At most `tries` attempts, begun within `budget_s` seconds of the first (None: no limit)."""

    tries: int = 5
    budget_s: float | None = None
    first_wait_s: float = 0.5
    max_wait_s: float = 60.0

    def pause(self, failures: int, asked_s: float | None = None) -> float:
        # The range stops growing at `tries` failures.
        return full_jitter(
            min(failures, self.tries), first_wait_s=self.first_wait_s, max_wait_s=self.max_wait_s, asked_s=asked_s
        )


class Retries:
    def __init__(self, policy: BackoffPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._began = clock()
        self.failures = 0

    def failed(self, asked_s: float | None = None) -> float | None:
        """Count a failure; returns the seconds to wait before the next attempt, or None to give up."""
        self.failures += 1
        wait = self._policy.pause(self.failures, asked_s)
        late = self._policy.budget_s is not None and self._clock() - self._began + wait > self._policy.budget_s
        return None if self.failures >= self._policy.tries or late else wait

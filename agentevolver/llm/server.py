"""State that all roles of one server share: outage, rate limit, concurrency window, what its models have refused."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from agentevolver.llm.dialect import Learnt
from agentevolver.llm.pace import Pace, RateLimits, read_headers


class Window:
    """Adaptive concurrency limit: additive increase, halved by a rate limit, never under one call; not bounded until
    the first refusal, and no more once it has grown beyond `ceiling`."""

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
                elif turn in self._waiting:  # whoever left meanwhile has taken out those that were cancelled
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


logger = logging.getLogger(__name__)


class Health:
    """Outage detector: whether a server that used to answer answers nobody any more."""

    def __init__(self) -> None:
        self._answered_at: float | None = None
        self._down_since: float | None = None
        self._is_waited_for = False

    def answered(self) -> None:
        """Note an answer, of whatever use."""
        now = time.monotonic()
        if self._is_waited_for and self._down_since is not None:
            logger.warning("the language model that was away answers again, after %.0f s", now - self._down_since)
        self._answered_at, self._down_since, self._is_waited_for = now, None, False

    def failed(self) -> None:
        """Note a failure that looks like an outage."""
        if self._down_since is None:
            self._down_since = time.monotonic()

    def is_away(self, since: float, longest_s: float) -> bool:
        """Whether nobody has had an answer since `since` (monotonic seconds),
        though there were some before, for less than `longest_s`.

        A server that has never answered is a mistake in the configuration rather than an outage.
        """
        if self._answered_at is None or self._down_since is None or self.has_answered(since):
            return False
        return time.monotonic() - self._down_since < longest_s

    def has_answered(self, since: float) -> bool:
        """Whether somebody has had an answer since `since` (monotonic seconds)."""
        return self._answered_at is not None and self._answered_at >= since

    def wait(self, why: str) -> None:
        """Say, once an outage, that calls wait for its end."""
        if not self._is_waited_for:
            logger.warning("%s", why)
            self._is_waited_for = True


class Server:
    """Shared state of one server, for the endpoints of all roles that ask it with the same key."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.health = Health()
        self.window = Window(0)
        self.learnt: defaultdict[str, Learnt] = defaultdict(Learnt)
        self.told = RateLimits()
        self._refusals = pace.refusals
        self._has_said = False

    def refused(
        self,
        sent: tuple[float, float],
        asked_s: float | None,
        max_wait_s: float,
        per_minute: tuple[float | None, float | None],
        why: str,
    ) -> float:
        """Note that a call was refused for its rate; returns the seconds that the server is left alone.

        Args:
            sent: when, since 1970 and as monotonic seconds.
            asked_s, max_wait_s, per_minute: as `Pace.refused`.
            why: is said once.
        """
        self.window.refused(sent[1])
        pause = self.pace.refused(sent[0], asked_s, max_wait_s, per_minute)
        self._refusals = self.pace.refusals
        if not self._has_said:
            self._has_said = True
            logger.warning("%s; calls are sent more slowly from now on", why)
        return pause

    def answered(self, sent_at: float, more_tokens: int, headers: Mapping[str, str], max_wait_s: float) -> None:
        """Note an answer: when its request was sent (since 1970),
        the tokens it took beyond those reserved, and its headers."""
        self.window.answered()
        told = read_headers(headers)
        if told.told:
            self.told = told
        self.pace.answered(sent_at, more_tokens, told, max_wait_s)

    def keep_up(self) -> None:
        """Take note of what other processes were refused."""
        refusals = self.pace.refusals
        if refusals > self._refusals:
            self._refusals = refusals
            self.window.refused(time.monotonic())

    def close(self) -> None:
        """Close the file of its pace."""
        self.pace.close()

"""What all roles that ask one server share: whether it is away, its pace, how many calls may be out, and what its
models have taught."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Mapping

from agentevolver.llm.dialect import Learnt
from agentevolver.llm.limits import RateLimits, read_headers
from agentevolver.llm.pace import Pace
from agentevolver.llm.window import Window

logger = logging.getLogger(__name__)


class Health:
    """Whether a server that used to answer answers nobody any more."""

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
        """Whether nobody has had an answer since `since` (monotonic seconds), though there were some before, for less
        than `longest_s`.

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
    """One server, for the endpoints of all roles that ask it with the same key."""

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
        """Note an answer: when its request was sent (since 1970), the tokens it took beyond those reserved, and its
        headers."""
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

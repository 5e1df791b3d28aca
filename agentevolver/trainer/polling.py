"""How often the trainer polls TransferQueue for finished rollouts; each poll lists all of its rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

# verl polls every 2 s, which is most of a step with short episodes.
POLL_INTERVAL_S = 0.02
# Slow polls use at most this share of a core, until the wait reaches its maximum.
LOOKING_SHARE = 0.05
LONGEST_INTERVAL_S = 0.5


def interval_after(look_s: float) -> float:
    """Return the seconds to wait after a poll that took `look_s`."""
    return min(LONGEST_INTERVAL_S, max(POLL_INTERVAL_S, look_s / LOOKING_SHARE))


def pace(buffer: ReplayBuffer, meanwhile: Callable[[], None]) -> None:
    """Adapt a buffer's poll interval to the cost of its polls, and call `meanwhile` before each wait."""
    look, wait = buffer._sync_metadata_from_transfer_queue, buffer._wait_for_next_poll

    def timed_look() -> None:
        began = time.monotonic()
        look()
        buffer.poll_interval = interval_after(time.monotonic() - began)

    def busy_wait(*arguments: Any) -> float:
        meanwhile()
        return float(wait(*arguments))

    buffer._sync_metadata_from_transfer_queue = timed_look
    buffer._wait_for_next_poll = busy_wait

"""How often the trainer looks whether rollouts are finished: a look at TransferQueue lists every row that is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

# verl looks every 2 s, which on short episodes is most of a step.
POLL_INTERVAL_S = 0.02
# Where a look takes long, looking takes so much of a core, until the waits are as long as they may be.
LOOKING_SHARE = 0.05
LONGEST_INTERVAL_S = 0.5


def interval_after(look_s: float) -> float:
    """Return the seconds to wait after a look that took so many."""
    return min(LONGEST_INTERVAL_S, max(POLL_INTERVAL_S, look_s / LOOKING_SHARE))


def pace(buffer: ReplayBuffer, meanwhile: Callable[[], None]) -> None:
    """Have a buffer wait by what its looks take, and `meanwhile` be called before each wait."""
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

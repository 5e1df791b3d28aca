"""An environment whose processes die soon after their start, once the file named in SICKLY exists."""

from __future__ import annotations

import os
import threading

from counter_envs import LonelyCounter


class Sickly(LonelyCounter):
    """Dies young."""


def _fall_ill() -> None:
    if os.path.exists(os.environ["SICKLY"]):
        threading.Timer(0.03, os._exit, (1,)).start()


if "SICKLY" in os.environ:
    os.register_at_fork(after_in_child=_fall_ill)

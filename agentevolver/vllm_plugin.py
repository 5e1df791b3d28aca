"""What vLLM loads of ours in each of its processes, through the entry point `vllm.general_plugins`.

vLLM's engine and worker pass messages through shared memory, and whoever waits for one yields its core again and again for a second. A core
that is yielded so is never free: on a machine whose cores are all wanted, the waiting takes them from the rollouts.
"""

from __future__ import annotations

import time

PAUSE_S = 1e-4


def register() -> None:
    """Let waiting readers and writers sleep a moment instead, on a CPU; changes nothing on another platform."""
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        shm_broadcast.sched_yield = lambda: time.sleep(PAUSE_S)

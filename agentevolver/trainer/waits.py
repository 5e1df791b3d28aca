"""What the trainer waits for, for the watchdog: asked of the processes that do the work, none of which can hold up the
question."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from agentevolver.utils.inflight import Waiting, described, merged

ASK_TIMEOUT_S = 10.0
# What phases wait for that are not rollouts.
WORKERS = "the policy's workers (the traceback of one that died is in Ray's logs)"
STARTING = "the policy to be loaded and vLLM to start (Ray's logs say more)"
WEIGHTS = "vLLM to take the weights"
DISK = "the checkpoint to be written"


def described_waits(workers: Sequence[Any], others: Sequence[Any] = ()) -> str:
    """Ask rollout workers, and other actors that know, what they wait for; returns it as text.

    Args:
        workers, others: handles of actors with a coroutine method `waiting`.
    """
    asked = [actor.waiting.remote() for actor in (*workers, *others)]
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=ASK_TIMEOUT_S) if asked else ([], [])
    answered: dict[Any, Waiting] = {}
    for reference in ready:
        try:
            answered[reference] = ray.get(reference)
        except RayError:  # the process is gone, which is an answer too
            continue
    silent = sum(reference not in answered for reference in asked[: len(workers)])
    parts = [described(merged(answered.values()))]
    if silent:
        parts.append(f"{silent} of {len(workers)} rollout workers, which do not answer")
    return ", ".join(filter(None, parts))


def watched(name: str, waits: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a trainer's method that is a phase of its watchdog (`_watchdog`)."""

    @functools.wraps(method)
    def inner(self: Any, *arguments: Any, **options: Any) -> Any:
        with self._watchdog.phase(name, lambda: waits):
            return method(self, *arguments, **options)

    return inner

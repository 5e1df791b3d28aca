"""verl's worker of policy, reference and rollout, that knows where the seconds of its last weight sync went."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from verl.single_controller.base.decorator import Dispatch, register

from agentevolver.trainer.renewable_worker import RenewableWorker


class TimedWorker(RenewableWorker):
    """`update_weights` is verl's. What it does beside waking vLLM and sending is loading,
    offloading and waiting for other ranks."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> Any:
        """verl's own, timed."""
        if not hasattr(self, "_sync_seconds"):
            self.rollout.resume = self._timed(self.rollout.resume, lambda tags: f"wake_{'_'.join(tags)}")
            self.rollout.update_weights = self._timed(self.rollout.update_weights, lambda *_: "send")
        self._sync_seconds: dict[str, float] = {}
        return await super().update_weights(global_steps=global_steps, mode=mode)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sync_seconds(self) -> dict[str, float]:
        """The seconds of the last weight sync's parts on this rank: `wake_weights`, `send`, `wake_kv_cache`."""
        return getattr(self, "_sync_seconds", {})

    def _timed(self, method: Callable[..., Awaitable[Any]], name: Callable[..., str]) -> Callable[..., Awaitable[Any]]:
        async def inner(*arguments: Any, **options: Any) -> Any:
            began, part = (
                time.perf_counter(),
                name(*arguments, **{key: value for key, value in options.items() if key == "tags"}),
            )
            try:
                return await method(*arguments, **options)
            finally:
                self._sync_seconds[part] = self._sync_seconds.get(part, 0.0) + time.perf_counter() - began

        return inner

"""Environments whose steps cost what `benchmarks.scale` says: one waits, one computes."""

from __future__ import annotations

import time
from typing import Any, ClassVar, Literal

from env_service.base import BaseEnv, InitState, Message, StepResult

WAIT_S = 0.1
BURN_S = 0.005


class Waiting(BaseEnv):
    """Each step waits 0.1 s and computes nothing, as one that asks another machine does."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        """Return an opening."""
        return {"state": [{"role": "user", "content": "Wait."}], "info": {}}

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Take the time of a step."""
        self.spend()
        reply: Message = {"role": "user", "content": "done " * 20}
        return {"state": [reply], "reward": 0.0, "is_terminated": False, "info": {}}

    def spend(self) -> None:
        """Wait."""
        time.sleep(WAIT_S)

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Return no score."""
        return 0.0

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return one task."""
        return ["t0"]


class Burning(Waiting):
    """Each step computes for 5 ms."""

    def spend(self) -> None:
        """Compute: 5 ms of CPU time of this thread."""
        end = time.thread_time() + BURN_S
        while time.thread_time() < end:
            pass


class Idle(Waiting):
    """A step costs nothing."""

    def spend(self) -> None:
        """Do nothing."""

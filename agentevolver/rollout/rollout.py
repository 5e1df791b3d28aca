"""Rollout of one task: attempts, turns, grade. Independent of verl and Ray.

A rollout returns a `StopReason` for every failure except a bug in user code. Failures of the environment or the engine
are retried with a fresh instance, a bounded number of times. The instance is always released.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from agentevolver.rollout.attempt import (
    AttemptResources,
    FlowAttempt,
    NewAttempt,
    RolloutAssignment,
    RolloutPolicy,
    TaskGraders,
)
from agentevolver.rollout.engine import Engine
from agentevolver.rollout.flows import AgentFlow, ReactFlow
from agentevolver.rollout.gateway.openings import Guide
from agentevolver.rollout.policy import ChatEngine, Summariser
from agentevolver.rollout.tool_calls import ToolUse
from agentevolver.types import StopReason, Task, TrainingSample, Trajectory
from agentevolver.utils import seeds
from context_manager.template import ContextTemplate
from env_service.protocol import Instances
from experience_manager.guide import Injection

__all__ = ["Guide", "Rollout", "RolloutPolicy", "RolloutRunner"]

logger = logging.getLogger(__name__)


# Graders retry by themselves, and an agent would fail again in the same way.
NOT_REPEATED = (StopReason.GRADING_ERROR, StopReason.AGENT_ERROR)


@dataclass(slots=True)
class Rollout:
    """A finished rollout; `samples` is empty if it failed, `injection` None if no guide was asked."""

    trajectory: Trajectory
    samples: list[TrainingSample]
    versions: set[int] = field(default_factory=set)
    generate_s: float = 0.0
    env_s: float = 0.0
    injection: Injection | None = None


class RolloutRunner:
    """Runs rollouts, many at once on one event loop.

    Args:
        engine: the policy, or a chat model, whose rollouts have no training samples.
        summariser: writes context summaries.
        graders: grade training tasks; None: the environment does. It always grades validation.
        new_attempt: creates an attempt; None: a flow plays it.
        tool_use: reads native tool calls; None: agents act by text.
        aside: the engine of validation and scouts; None: `engine`.
    """

    def __init__(
        self,
        policy: RolloutPolicy,
        client: Instances,
        engine: Engine | ChatEngine,
        new_context: Callable[[], ContextTemplate],
        flow: Callable[[Task], AgentFlow] | None = None,
        summariser: Summariser | None = None,
        graders: TaskGraders | None = None,
        new_attempt: NewAttempt | None = None,
        tool_use: ToolUse | None = None,
        aside: Engine | None = None,
    ) -> None:
        react = ReactFlow()
        self._means = AttemptResources(
            policy, client, engine, new_context, flow or (lambda task: react), summariser, graders, tool_use
        )
        self._aside = self._means if aside is None else replace(self._means, engine=aside)
        self._new_attempt = new_attempt or FlowAttempt

    @property
    def max_tries(self) -> int:
        return self._means.policy.max_tries

    async def run(
        self,
        task: Task,
        group_id: str,
        rollout_id: int,
        sampling_params: dict[str, Any],
        env_params: dict[str, Any],
        guide: Guide | None = None,
    ) -> Rollout:
        """Roll `task` out and grade it, with the guidance of `guide`; retry failures.

        Raises only cancellation, and errors of a broken flow, template or grader.
        """
        started = time.perf_counter()
        means = self._aside if task.is_validation or task.is_scout else self._means
        for attempt in range(1, self._means.policy.max_tries + 1):
            # Every attempt uses the same seeds, so that an outage changes no result.
            with seeds.drawing_again():
                episode = self._new_attempt(RolloutAssignment(means, task, sampling_params, env_params, guide))
                stop_reason, outcome, error = await episode.run()
            if stop_reason.happened or outcome is not None:
                break
            logger.warning(
                "rollout %s_%d of task %s, attempt %d: %s: %s",
                group_id,
                rollout_id,
                task.task_id,
                attempt,
                stop_reason,
                error,
            )
            if stop_reason in NOT_REPEATED:
                break
            if attempt < self._means.policy.max_tries and not await self._recovered(episode.unavailable, attempt):
                break
        seconds = time.perf_counter() - started
        account = episode.account()
        trajectory = Trajectory(
            task,
            group_id,
            rollout_id,
            episode.messages,
            episode.steps,
            stop_reason,
            outcome,
            attempt,
            error,
            round(seconds, 4),
            account.edits,
            gateway=account.gateway,
            tools=account.tools,
        )
        samples: list[TrainingSample] = []
        if outcome is not None and not isinstance(self._means.engine, ChatEngine):
            made, trajectory.dropped_samples = episode.samples()
            samples = [replace(sample, trajectory_id=trajectory.trajectory_id) for sample in made]
        return Rollout(trajectory, samples, account.versions, account.generate_s, account.env_s, episode.injection)

    async def _recovered(self, unavailable: bool, attempt: int) -> bool:
        """Wait before the next attempt. Return False if the service stayed away for `unavailable_timeout_s`."""
        if not unavailable:
            await asyncio.sleep(random.uniform(0.5, 1.0) * min(2.0 ** (attempt - 1), 10.0))
            return True
        deadline = time.monotonic() + self._means.policy.unavailable_timeout_s
        while True:
            if await self._means.client.health():
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(random.uniform(0.5, 1.5))

"""One rollout of one task: attempts, turns, grade. Knows neither verl nor Ray.

A rollout always returns. It ends with a `StopReason`. A rollout that the environment or the engine failed is retried: a
retry is another attempt, from a fresh instance, a bounded number of times; what remains failed is returned as such,
without a grade. A rollout that nobody could grade is returned so at once: a judge has tries of its own. The instance is
released whatever happens, cancellation included.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from uuid import uuid4

from agentevolver.flows import AgentFlow, ReactFlow
from agentevolver.rollout.policy import ChatEngine, Engine, EngineError, Summariser
from agentevolver.rollout.session import EnvClient, LiveSession
from agentevolver.types import Outcome, Step, StopReason, Task, TrainingSample, Trajectory
from agentevolver.utils import seeds
from agentevolver.utils.openings import replace_query
from context_manager.template import ContextFull, ContextTemplate
from env_service.client import EnvServiceError, EnvUnavailable
from experience_manager.guide import Guidance, Injection
from task_manager.graders.base import GradedWorld, GradingError, Transcript
from task_manager.tasks import env_params_of, seed_of

logger = logging.getLogger(__name__)


class TaskGraders(Protocol):
    """What is used of `task_manager.graders.registry.Graders`."""

    async def grade(self, task: Task, trajectory: Transcript, client: GradedWorld, instance_id: str) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class Played:
    """What a grader sees of an episode: everything that was said, and the actions among its steps."""

    messages: Sequence[dict[str, Any]]
    steps: Sequence[Step]


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """How a rollout is run, from the configuration."""

    env_type: str
    max_steps: int
    max_tries: int
    sparse: bool
    unavailable_timeout_s: float
    no_think: bool = False


# Puts guidance before the task of the opening messages that the environment gave. Raises nothing but cancellation.
Guide = Callable[[list[dict[str, Any]]], Awaitable[Injection]]


@dataclass(slots=True)
class Rollout:
    """A finished rollout: its record, its training samples (none if it failed), and the weight versions that sampled
    it.

    `injection` is what the policy was given before the task, None if no guide was asked.
    """

    trajectory: Trajectory
    samples: list[TrainingSample]
    versions: set[int] = field(default_factory=set)
    generate_s: float = 0.0
    env_s: float = 0.0
    injection: Injection | None = None


class RolloutRunner:
    """Runs rollouts against one environment service and one engine; safe for many at once on one event loop.

    Args:
        policy: how a rollout is run.
        client: the environment service.
        engine: the policy, or a chat model in its place, whose rollouts have no training samples.
        new_context: makes an episode's context.
        flow: picks a task's agent flow.
        summariser: writes the summaries that a context wants of a role's model.
        graders: grade training tasks, each by the grader that it names; None: the environment grades all. It always
            grades validation.
    """

    def __init__(
        self,
        policy: RolloutPolicy,
        client: EnvClient,
        engine: Engine | ChatEngine,
        new_context: Callable[[], ContextTemplate],
        flow: Callable[[Task], AgentFlow] | None = None,
        summariser: Summariser | None = None,
        graders: TaskGraders | None = None,
    ) -> None:
        react = ReactFlow()
        self._policy = policy
        self._client = client
        self._engine = engine
        self._new_context = new_context
        self._flow = flow or (lambda task: react)
        self._summariser = summariser
        self._graders = graders

    async def run(
        self,
        task: Task,
        group_id: str,
        rollout_id: int,
        sampling_params: dict[str, Any],
        env_params: dict[str, Any],
        guide: Guide | None = None,
    ) -> Rollout:
        """Roll `task` out and grade it, with what `guide` puts before the task; retry what failed. Raises nothing but
        cancellation.

        Every attempt samples from the same seeds: one that an outage ended is played again as it was.
        """
        started = time.perf_counter()
        for attempt in range(1, self._policy.max_tries + 1):
            episode = _Attempt(self, task, sampling_params, env_params, guide)
            with seeds.drawing_again():
                stop_reason, outcome, error = await episode.run()
            if stop_reason.happened:
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
            if stop_reason is StopReason.GRADING_ERROR:
                break
            if attempt < self._policy.max_tries and not await self._recovered(episode.unavailable, attempt):
                break
        seconds = time.perf_counter() - started
        context, session = episode.context, episode.session
        trajectory = Trajectory(
            task,
            group_id,
            rollout_id,
            context.messages,
            session.steps,
            stop_reason,
            outcome,
            attempt,
            error,
            round(seconds, 4),
            context.edits,
        )
        samples: list[TrainingSample] = []
        if outcome is not None and not isinstance(self._engine, ChatEngine):
            samples = [replace(sample, trajectory_id=trajectory.trajectory_id) for sample in context.samples()]
            trajectory.dropped_samples = dict(context.dropped)
        return Rollout(trajectory, samples, session.versions, session.generate_s, session.env_s, episode.injection)

    async def _recovered(self, unavailable: bool, attempt: int) -> bool:
        """Wait before the next attempt; false when the service stayed away for `unavailable_timeout_s`."""
        if not unavailable:
            await asyncio.sleep(random.uniform(0.5, 1.0) * min(2.0 ** (attempt - 1), 10.0))
            return True
        deadline = time.monotonic() + self._policy.unavailable_timeout_s
        while True:
            if await self._client.health():
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(random.uniform(0.5, 1.5))


class _Attempt:
    """One attempt at a rollout, the first or a retry, on an instance of its own."""

    def __init__(
        self,
        runner: RolloutRunner,
        task: Task,
        sampling_params: dict[str, Any],
        env_params: dict[str, Any],
        guide: Guide | None,
    ) -> None:
        self._runner = runner
        self._task = task
        self._env_params = env_params
        self._guide = guide
        self._flow = runner._flow(task)
        self._instance_id = f"{seed_of(task)}-{uuid4().hex}"
        self.context = runner._new_context()
        self.session = LiveSession(
            context=self.context,
            engine=runner._engine,
            client=runner._client,
            instance_id=self._instance_id,
            sampling_params=sampling_params,
            max_steps=runner._policy.max_steps,
            shown=self._from_environment,
            summariser=runner._summariser,
        )
        self.unavailable = False
        self.injection: Injection | None = None
        self._opening: list[dict[str, Any]] = []

    async def run(self) -> tuple[StopReason, Outcome | None, str]:
        try:
            try:
                stop_reason, note = await self._play()
                outcome = await self._grade() if self.session.actions else self._of_inaction(note or stop_reason)
                return stop_reason, outcome, note
            finally:
                await self._release()
        except EnvServiceError as error:
            self.unavailable = isinstance(error, EnvUnavailable)
            return StopReason.ENV_ERROR, None, str(error)
        except EngineError as error:
            return StopReason.LLM_ERROR, None, str(error)
        except GradingError as error:
            return StopReason.GRADING_ERROR, None, str(error)

    async def _play(self) -> tuple[StopReason, str]:
        """Create the instance and let the flow act until the episode ends."""
        params = {**self._env_params, **env_params_of(self._task), "is_open_query": self._task.open_query}
        create = self._runner._client.create_instance(
            self._runner._policy.env_type, seed_of(self._task), self._instance_id, params
        )
        state = await self.session.timed(create)
        try:
            await self._begin(state["state"], state.get("info"))
            stop_reason, note = await self._flow.run(self.session), ""
        except ContextFull as full:
            stop_reason, note = StopReason.CONTEXT_FULL, str(full)
        self.session.close()
        return stop_reason, note

    async def _grade(self) -> Outcome:
        """Ask the task's grader, or the environment. A score of its that is no number in 0..1 is an environment error,
        not a grade."""
        graders = self._runner._graders
        if graders is not None and not self._task.is_validation:
            played = Played(self._said(), [step for step in self.session.steps if step.kind == "action"])
            return await self.session.timed(graders.grade(self._task, played, self._runner._client, self._instance_id))
        sparse = {"sparse": self._runner._policy.sparse}
        score = await self.session.timed(
            self._runner._client.evaluate(self._instance_id, self.context.messages, sparse)
        )
        if not isinstance(score, int | float) or not math.isfinite(score) or not 0.0 <= score <= 1.0:
            raise EnvServiceError(
                f"graded {score!r}, expected a number in 0..1", url="/evaluate", instance_id=self._instance_id
            )
        return Outcome(score=float(score), success=score >= 1.0)

    def _said(self) -> list[dict[str, Any]]:
        """What was said, as a grader is to see it: the opening is the environment's with the task's query, without any
        guidance."""
        messages = self.context.messages
        first = next((place for place, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        return [*self._opening, *messages[first:]]

    def _of_inaction(self, why: str) -> Outcome | None:
        """The outcome of an episode in which the policy never got to act: none, but in validation, which would else
        count the tasks that fit alone, the task is not solved."""
        return Outcome(0.0, False, f"the policy never acted: {why}") if self._task.is_validation else None

    async def _release(self) -> None:
        try:
            await asyncio.shield(self._runner._client.release_instance(self._instance_id))
        except EnvServiceError as error:
            logger.warning(
                "instance %s could not be released, the service will expire it: %s", self._instance_id, error
            )

    async def _begin(self, messages: list[dict[str, Any]], info: dict[str, Any] | None) -> None:
        """Start the context with the environment's opening messages, the task's own wording in the place of the query
        if it has one, and guidance before it if there is some that fits."""
        opening = [dict(message) for message in messages]
        if self._task.query is not None:
            opening = replace_query(messages, self._task.query, info)
        self._opening = opening
        if self._guide is None:
            self.context.start(self._shown(opening))
            return
        self.injection = await self._guide(opening)
        try:
            self._start(self.injection)
        except ContextFull as full:
            if not self.injection.guided:
                raise
            self.injection = Injection(opening, opening, Guidance(problem=f"too long: {full}"))
            self._start(self.injection)

    def _start(self, injection: Injection) -> None:
        self.context.start(
            self._shown(injection.messages), self._shown(injection.plain) if injection.stripped else None
        )

    def _shown(self, opening: list[dict[str, Any]]) -> list[dict[str, Any]]:
        shown = self._flow.opening([dict(message) for message in opening])
        return [*shown[:-1], self._from_environment(shown[-1])]

    def _from_environment(self, message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "content": f"{message['content']} /no_think"} if self._runner._policy.no_think else message

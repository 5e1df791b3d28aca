"""An attempt at a rollout: create an instance, act, grade, release."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from agentevolver.rollout.engine import Engine, EngineError
from agentevolver.rollout.flows import AgentFlow
from agentevolver.rollout.gateway.openings import Guide
from agentevolver.rollout.policy import ChatEngine, Summariser
from agentevolver.rollout.session import LiveSession
from agentevolver.rollout.tool_calls import ToolUse
from agentevolver.types import Outcome, Step, StopReason, Task, TrainingSample
from agentevolver.utils.names import system_name
from agentevolver.utils.numbers import score
from agentevolver.utils.openings import replace_query
from context_manager.messages import ContentError
from context_manager.template import ContextFull, ContextTemplate
from env_service.client import EnvServiceError, EnvUnavailable
from env_service.protocol import Instances
from experience_manager.guide import Guidance, Injection
from task_manager.graders.base import GradingError, Transcript
from task_manager.tasks import env_params_of, seed_of

T = TypeVar("T")
logger = logging.getLogger(__name__)


class TaskGraders(Protocol):
    async def grade(self, task: Task, trajectory: Transcript, client: Instances, instance_id: str) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class Played:
    messages: Sequence[dict[str, Any]]
    steps: Sequence[Step]


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """Limits and modes of rollouts, from four sections of the configuration."""

    max_steps: int
    max_tries: int
    sparse: bool
    unavailable_timeout_s: float
    no_think: bool = False
    # Environments whose agents act by text in a run with native tool calls.
    by_text: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AttemptResources:
    """Dependencies shared by the attempts of a worker process; `RolloutRunner` documents them."""

    policy: RolloutPolicy
    client: Instances
    engine: Engine | ChatEngine
    new_context: Callable[[], ContextTemplate]
    flow: Callable[[Task], AgentFlow]
    summariser: Summariser | None
    graders: TaskGraders | None
    tool_use: ToolUse | None = None

    def tool_use_in(self, env_type: str) -> ToolUse | None:
        """Return the reader of native calls for an environment, or None if its agents act by text."""
        return None if env_type in self.policy.by_text else self.tool_use


@dataclass(frozen=True, slots=True)
class RolloutAssignment:
    """A task to attempt, with the instance's parameters `env_params`."""

    means: AttemptResources
    task: Task
    sampling_params: dict[str, Any]
    env_params: dict[str, Any]
    guide: Guide | None


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """Facts about an attempt: weight versions, seconds of engine and environment, context edits, offered tools,
    gateway."""

    versions: set[int]
    generate_s: float
    env_s: float
    edits: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    gateway: dict[str, Any] | None = None


class Attempt(ABC):
    """One attempt on an instance of its own. Subclasses implement the acting."""

    def __init__(self, given: RolloutAssignment) -> None:
        self.means = given.means
        self.task = given.task
        self.env_params = given.env_params
        self.guide = given.guide
        self.instance_id = f"{system_name(seed_of(given.task))}-{uuid4().hex}"
        self.unavailable = False
        self.injection: Injection | None = None

    # ---- what came of it ----

    @property
    @abstractmethod
    def messages(self) -> list[dict[str, Any]]: ...

    @property
    @abstractmethod
    def steps(self) -> list[Step]: ...

    @property
    @abstractmethod
    def acted(self) -> bool:
        """Whether the policy acted, so that there is something to grade."""

    @abstractmethod
    def account(self) -> AttemptFacts: ...

    @abstractmethod
    def samples(self) -> tuple[list[TrainingSample], dict[str, int]]:
        """Return the training samples, and the number of dropped samples by reason."""

    # ---- what a subclass does ----

    @abstractmethod
    async def play(self, state: dict[str, Any]) -> tuple[StopReason, str]:
        """Act from the instance's initial state to the end of the episode. Return the stop reason and a note."""

    @abstractmethod
    async def timed(self, call: Awaitable[T]) -> T:
        """Await a call of the environment service and count its time."""

    @property
    @abstractmethod
    def unguided(self) -> list[dict[str, Any]]:
        """The opening messages without guidance."""

    # ---- its course ----

    async def run(self) -> tuple[StopReason, Outcome | None, str]:
        """Play and grade. Return the stop reason, the grade or None, and the error text."""
        try:
            try:
                stop_reason, note = await self.play(await self._create())
                return stop_reason, await self.outcome(stop_reason, note), note
            finally:
                await self._release()
        except (EnvServiceError, ContentError) as error:
            self.unavailable = isinstance(error, EnvUnavailable)
            return StopReason.ENV_ERROR, None, str(error)
        except EngineError as error:
            return StopReason.LLM_ERROR, None, str(error)
        except GradingError as error:
            return StopReason.GRADING_ERROR, None, str(error)

    async def outcome(self, stop_reason: StopReason, note: str) -> Outcome | None:
        """Return the grade. If the policy never acted, return None in training and a score of 0 in validation."""
        return await self.grade() if self.acted else self.of_inaction(note or stop_reason)

    async def grade(self) -> Outcome:
        """Ask the task's grader or the environment. Raises EnvServiceError for a score outside of 0..1."""
        if self.means.graders is not None and not self.task.is_validation:
            messages = self.messages
            acted = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
            # Graders see the conversation without the guidance.
            played = Played([*self.unguided, *messages[acted:]], [step for step in self.steps if step.kind == "action"])
            return await self.timed(self.means.graders.grade(self.task, played, self.means.client, self.instance_id))
        sparse = {"sparse": self.means.policy.sparse}
        graded = await self.timed(self.means.client.evaluate(self.instance_id, self.messages, sparse))
        if (found := score(graded)) is None:
            raise EnvServiceError(
                f"graded {graded!r}, expected a number in 0..1", url="/evaluate", instance_id=self.instance_id
            )
        return Outcome(score=found, success=found >= 1.0)

    def of_inaction(self, why: str) -> Outcome | None:
        # Without a grade, validation would average only over tasks that fit the prompt.
        return Outcome(0.0, False, f"the policy never acted: {why}") if self.task.is_validation else None

    async def _create(self) -> dict[str, Any]:
        params = {**self.env_params, **env_params_of(self.task), "is_open_query": self.task.open_query}
        if self.means.tool_use_in(self.task.env_type) is not None:
            params["native_tools"] = True
        create = self.means.client.create_instance(self.task.env_type, seed_of(self.task), self.instance_id, params)
        state: dict[str, Any] = await self.timed(create)
        return state

    async def _release(self) -> None:
        try:
            # Shielded: a cancelled rollout still releases its instance, instead of leaving it until it expires.
            await asyncio.shield(self.means.client.release_instance(self.instance_id))
        except EnvServiceError as error:
            logger.warning("instance %s could not be released, the service will expire it: %s", self.instance_id, error)

    def opening(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the opening messages, with the task's own query in place of the environment's if it has one."""
        if self.task.query is not None:
            return replace_query(state["state"], self.task.query, state.get("info"))
        return [dict(message) for message in state["state"]]


class FlowAttempt(Attempt):
    def __init__(self, given: RolloutAssignment) -> None:
        super().__init__(given)
        means, task = given.means, given.task
        self._flow = means.flow(task)
        self._context = means.new_context()
        self._session = LiveSession(
            context=self._context,
            engine=means.engine,
            client=means.client,
            env_type=task.env_type,
            instance_id=self.instance_id,
            sampling_params=given.sampling_params,
            max_steps=means.policy.max_steps,
            shown=self._from_environment,
            summariser=means.summariser,
            tool_use=means.tool_use_in(task.env_type),
        )
        self._opening: list[dict[str, Any]] = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self._context.messages

    @property
    def steps(self) -> list[Step]:
        return self._session.steps

    @property
    def acted(self) -> bool:
        # Calls that were not carried out count as actions too.
        return self._session.actions > 0

    def account(self) -> AttemptFacts:
        session = self._session
        return AttemptFacts(session.versions, session.generate_s, session.env_s, self._context.edits, session.offered)

    def samples(self) -> tuple[list[TrainingSample], dict[str, int]]:
        samples = self._context.samples()
        return samples, dict(self._context.dropped)

    async def timed(self, call: Awaitable[T]) -> T:
        return await self._session.timed(call)

    async def play(self, state: dict[str, Any]) -> tuple[StopReason, str]:
        try:
            await self._begin(state)
            stop_reason, note = await self._flow.run(self._session), ""
        except ContextFull as full:
            stop_reason, note = StopReason.CONTEXT_FULL, str(full)
        self._session.close()
        return stop_reason, note

    @property
    def unguided(self) -> list[dict[str, Any]]:
        return self._opening

    async def _begin(self, state: dict[str, Any]) -> None:
        self._session.offer(state.get("info"))
        self._opening = opening = self.opening(state)
        if self.guide is None:
            self._context.start(self._shown(opening))
            return
        self.injection = await self.guide(opening)
        try:
            self._start(self.injection)
        except ContextFull as full:
            if not self.injection.guided:
                raise
            # Guidance that does not fit is dropped, instead of failing the attempt.
            self.injection = Injection(opening, opening, Guidance(problem=f"too long: {full}"))
            self._start(self.injection)

    def _start(self, injection: Injection) -> None:
        self._context.start(
            self._shown(injection.messages), self._shown(injection.plain) if injection.stripped else None
        )

    def _shown(self, opening: list[dict[str, Any]]) -> list[dict[str, Any]]:
        shown = self._flow.opening([dict(message) for message in opening])
        return [*shown[:-1], self._from_environment(shown[-1])]

    def _from_environment(self, message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "content": f"{message['content']} /no_think"} if self.means.policy.no_think else message


NewAttempt = Callable[[RolloutAssignment], Attempt]

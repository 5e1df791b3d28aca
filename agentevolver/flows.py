"""Agent flows: which calls of the policy make up an episode, and when one of them is an action.

A flow sees a `Session` alone. The session asks the policy, carries actions out, records each call as a step of its own,
and keeps the context; so flows and context templates compose freely, and a flow runs the same with the trained policy
and with any chat model. Failures pass through a flow: it catches nothing (`EngineError`, `EnvServiceError` and
`ContextFull` end the attempt where they belong).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agentevolver.errors import ConfigError
from agentevolver.types import StopReason, Task
from agentevolver.utils.names import load_class, name_or_spec

AGENT_FLOWS = ("react", "planner_executor")
_FAILED = re.compile(r"\s*(\[m\d+\]\s*)?[\[\"'`*]*(err|error|exception|traceback)\b", re.IGNORECASE)
_FAILURE_FACTS = ("refused", "failed", "malformed_calls")
PLAN = "First write a plan: a short numbered list of what to do, nothing else. Do not act yet."
GO = "Carry the plan out, one action a message."
REVISE = "This step failed. Write the whole plan for what is left to do anew, nothing else."
MAX_PLANS = 4


class FlowSettings(BaseModel):
    """The flow and the keys that only some flows read (their `reads`). Null leaves the choice to the flow."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    agent_flow: str = Field(
        "react", description="how the agent acts: a name or package.module:Class; a task's metadata may name another"
    )
    max_plans: int | None = Field(None, ge=1, description="plans of an episode, the first included; null: 4")

    @field_validator("agent_flow")
    @classmethod
    def _flow(cls, value: str) -> str:
        return name_or_spec(value, AGENT_FLOWS)


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of the environment to an action, as the policy will see it; `failed`: the action was not carried out."""

    text: str
    reward: float
    over: bool
    failed: bool


class Session(Protocol):
    """One episode as a flow sees it."""

    @property
    def max_steps(self) -> int:
        """How many actions the episode may have."""
        ...

    async def ask(self, kind: str = "action") -> str:
        """Let the policy speak next and return what it said; `kind` names the step. Raises ContextFull, EngineError."""
        ...

    async def act(self, text: str) -> Answer:
        """Give what was said last to the environment. Raises EnvServiceError."""
        ...

    def tell(self, text: str) -> None:
        """Add an instruction to the conversation, as the user would give it."""
        ...

    def pin(self) -> None:
        """Keep what was said last in sight when the context is shortened, in place of what was pinned before."""
        ...


class AgentFlow(ABC):
    """Agent flow: how an agent acts. One object serves many episodes at once, so it keeps nothing of an episode.

    `reads` names the keys of `FlowSettings` that the flow reads.
    """

    reads: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, options: FlowSettings | None = None) -> None:
        self.options = options or FlowSettings()

    def opening(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the opening messages as the policy shall see them."""
        return messages

    @abstractmethod
    async def run(self, session: Session) -> StopReason:
        """Act until the environment ends the episode (`FINISHED`) or `max_steps` actions were taken (`MAX_STEPS`)."""


def has_failed(text: str, info: Mapping[str, Any]) -> bool:
    """Whether the environment says that it did not carry an action out: by its facts, or because its answer begins as
    an error does."""
    return any(info.get(fact) for fact in _FAILURE_FACTS) or _FAILED.match(text) is not None


class ReactFlow(AgentFlow):
    """Every reply is an action."""

    async def run(self, session: Session) -> StopReason:
        """Take up to `max_steps` actions."""
        for _ in range(session.max_steps):
            answer = await session.act(await session.ask())
            if answer.over:
                return StopReason.FINISHED
        return StopReason.MAX_STEPS


class PlannerExecutorFlow(AgentFlow):
    """Planner and executor: asks for a plan, then for actions."""

    reads: ClassVar[frozenset[str]] = frozenset({"max_plans"})

    def opening(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Ask for the plan."""
        return [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}\n\n{PLAN}"}]

    async def run(self, session: Session) -> StopReason:
        """Take up to `max_steps` actions; plans are not counted among them."""
        revisions = (self.options.max_plans or MAX_PLANS) - 1
        await self._plan(session)
        for left in reversed(range(session.max_steps)):
            answer = await session.act(await session.ask())
            if answer.over:
                return StopReason.FINISHED
            if answer.failed and revisions and left:
                revisions -= 1
                session.tell(REVISE)
                await self._plan(session)
        return StopReason.MAX_STEPS

    @staticmethod
    async def _plan(session: Session) -> None:
        await session.ask("plan")
        session.pin()
        session.tell(GO)


FLOWS: dict[str, type[AgentFlow]] = {"react": ReactFlow, "planner_executor": PlannerExecutorFlow}


def flow_class(name: str) -> type[AgentFlow]:
    """Return the class behind a name. Raises ConfigError if there is none."""
    if name in FLOWS:
        return FLOWS[name]
    try:
        return load_class(name, AgentFlow, tuple(FLOWS))
    except ValueError as error:
        raise ConfigError(f"agent_flow = {name}: {error}") from error


def checked_flow(settings: FlowSettings) -> type[AgentFlow]:
    """Return the flow of a configuration. Raises ConfigError if there is none, or for a key that is set and that it
    does not read."""
    flow = flow_class(settings.agent_flow)
    for key in FlowSettings.model_fields:
        if getattr(settings, key) is None or key == "agent_flow" or key in flow.reads:
            continue
        readers = " and ".join(name for name, other in FLOWS.items() if key in other.reads)
        raise ConfigError(
            f"actor_rollout_ref.rollout.{key} is read by {readers} alone, agent_flow is {settings.agent_flow}: "
            "remove the key, or choose another"
        )
    return flow


def flow_chooser(settings: FlowSettings) -> Callable[[Task], AgentFlow]:
    """Return what picks a task's flow: the one that its metadata names as `agent_flow`, else the configuration's.

    Raises ConfigError at once for a flow of the configuration that cannot be used or ignores a key that is set, and
    when it is called for one that a task names.
    """
    made: dict[str, AgentFlow] = {settings.agent_flow: checked_flow(settings)(settings)}

    def choose(task: Task) -> AgentFlow:
        name = task.metadata.get("agent_flow", settings.agent_flow)
        if name not in made:
            made[name] = flow_class(str(name))(settings)
        return made[name]

    return choose

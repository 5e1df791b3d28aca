"""Agent flows: which calls of the policy make up an episode, and which of them are actions.

A flow sees only a `Session`, so flows and context templates combine freely. A flow catches no failure: `EngineError`,
`EnvServiceError` and `ContextFull` end the attempt.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agentevolver.types import StopReason, Task
from agentevolver.utils.errors import ConfigError
from agentevolver.utils.names import load_class, name_or_spec

AGENT_FLOWS = ("react", "planner_executor")
_FAILED = re.compile(r"\s*(\[m\d+\]\s*)?[\[\"'`*]*(err|error|exception|traceback)\b", re.IGNORECASE)
_FAILURE_FACTS = ("refused", "failed", "malformed_calls")
PLAN = "First write a plan: a short numbered list of what to do, nothing else. Do not act yet."
GO = "Carry the plan out, one action a message."
REVISE = "This step failed. Write the whole plan for what is left to do anew, nothing else."
# Plans of an episode, the first included: each takes tokens from the actions.
MAX_PLANS = 4


class FlowSettings(BaseModel):
    """The flow of a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    agent_flow: str = Field(
        "react", description="how the agent acts: a name or package.module:Class; a task's metadata may name another"
    )

    @field_validator("agent_flow")
    @classmethod
    def _flow(cls, value: str) -> str:
        return name_or_spec(value, AGENT_FLOWS)


@dataclass(frozen=True, slots=True)
class Answer:
    """The environment's answer to an action, as the policy sees it; `failed` means the action was not carried out."""

    text: str
    reward: float
    over: bool
    failed: bool


class Session(Protocol):
    """One episode as a flow sees it."""

    @property
    def max_steps(self) -> int: ...

    async def ask(self, kind: str = "action") -> str:
        """Return the policy's next reply; `kind` names the step. Raises ContextFull, EngineError."""
        ...

    async def act(self, text: str) -> Answer:
        """Send the latest reply to the environment. Raises EnvServiceError."""
        ...

    def tell(self, text: str) -> None:
        """Add an instruction to the conversation, as a user message."""
        ...

    def pin(self) -> None:
        """Keep the latest reply when the context is shortened; it replaces the reply pinned before."""
        ...


class AgentFlow(ABC):
    """How an agent acts. One object serves many concurrent episodes, so it must not keep their state."""

    def __init__(self, options: FlowSettings | None = None) -> None:
        self.options = options or FlowSettings()

    def opening(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the opening messages as the policy sees them."""
        return messages

    @abstractmethod
    async def run(self, session: Session) -> StopReason:
        """Act until the environment ends the episode (`FINISHED`) or `max_steps` actions were taken (`MAX_STEPS`)."""


def has_failed(text: str, info: Mapping[str, Any]) -> bool:
    """Whether an action failed: the environment says so in `info`, or its answer begins like an error."""
    return any(info.get(fact) for fact in _FAILURE_FACTS) or _FAILED.match(text) is not None


class ReactFlow(AgentFlow):
    """Every reply is an action."""

    async def run(self, session: Session) -> StopReason:
        for _ in range(session.max_steps):
            answer = await session.act(await session.ask())
            if answer.over:
                return StopReason.FINISHED
        return StopReason.MAX_STEPS


class PlannerExecutorFlow(AgentFlow):
    """Asks for a plan, then for actions."""

    def opening(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}\n\n{PLAN}"}]

    async def run(self, session: Session) -> StopReason:
        """Take up to `max_steps` actions; plans do not count."""
        revisions = MAX_PLANS - 1
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
    """Return a flow class by name. Raises ConfigError."""
    if name in FLOWS:
        return FLOWS[name]
    try:
        return load_class(name, AgentFlow, tuple(FLOWS))
    except ValueError as error:
        raise ConfigError(f"agent_flow = {name}: {error}") from error


def flow_chooser(settings: FlowSettings) -> Callable[[Task], AgentFlow]:
    """Return a function that picks a task's flow: `agent_flow` in its metadata, else the configured one.

    Raises ConfigError for an unusable configured flow at once, for a task's flow when it is picked.
    """
    made: dict[str, AgentFlow] = {settings.agent_flow: flow_class(settings.agent_flow)(settings)}

    def choose(task: Task) -> AgentFlow:
        name = task.metadata.get("agent_flow", settings.agent_flow)
        if name not in made:
            made[name] = flow_class(str(name))(settings)
        return made[name]

    return choose

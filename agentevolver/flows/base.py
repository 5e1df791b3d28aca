"""The contract of an agent flow: which calls of the policy make up an episode, and when one of them is an action.

A flow sees a `Session` alone. The session asks the policy, carries actions out, records each call as a step of its own,
and keeps the context; so flows and context templates compose freely, and a flow runs the same with the trained policy
and with any chat model. Failures
pass through a flow: it catches nothing (`EngineError`, `EnvServiceError`, `ContextFull` end the attempt where they
    belong).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from agentevolver.flows.settings import FlowSettings
from agentevolver.types import StopReason

_FAILED = re.compile(r"\s*(\[m\d+\]\s*)?[\[\"'`*]*(err|error|exception|traceback)\b", re.IGNORECASE)
_FAILURE_FACTS = ("refused", "failed", "malformed_calls")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the environment said to an action, as the policy will see it; `failed`: the action was not carried out."""

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
    """How an agent acts. One object serves many episodes at once, so it keeps nothing of an episode.

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

"""The interface of graders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from agentevolver.types import Outcome, Task
from env_service.protocol import Instances


class GradingError(Exception):
    """A rollout could not be graded. It has no outcome, and is masked in training."""


class GraderConfigError(ValueError):
    """The configured grader cannot work; the message says what to change."""


class StepLike(Protocol):
    """A step as graders read it."""

    @property
    def action(self) -> str: ...

    @property
    def observation(self) -> str: ...


class Transcript(Protocol):
    """A rollout as graders read it, e.g. `agentevolver.types.Trajectory`."""

    @property
    def messages(self) -> Sequence[dict[str, Any]]: ...

    @property
    def steps(self) -> Sequence[StepLike]: ...


class Grader(Protocol):
    """Grades rollouts; safe for concurrent use on one event loop."""

    @property
    def name(self) -> str: ...

    async def grade(self, task: Task, trajectory: Transcript, client: Instances, instance_id: str) -> Outcome:
        """Grade a rollout with a score in 0..1 while its instance is open.

        Raises GradingError, and what the client raises.
        """
        ...


def bare_query(task: Task, messages: Sequence[dict[str, Any]]) -> str:
    """Return the user's query without injected experience."""
    # Injecting text into an opening keeps the query in the metadata; else it is the last message of the opening.
    if task.query is not None:
        return task.query
    kept = task.metadata.get("query")
    return str(kept) if kept is not None else str(opening_of(messages)[-1]["content"])


def opening_of(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages before the first action; raises GradingError if there are none."""
    opening: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "assistant":
            break
        opening.append(message)
    if not opening:
        raise GradingError("the rollout has no opening messages, so there is no task to grade it by")
    return opening

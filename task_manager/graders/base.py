"""Graders' contract: what a grader is given and what it gives back.

A grade is a score in 0..1 that somebody really gave. Where nobody could (the judge cannot be reached or makes no sense,
the environment is gone, the task lacks what the grader needs) it is a `GradingError`: the rollout then has no grade and
must not be trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from agentevolver.types import Outcome, Task
from env_service.protocol import Instances


class GradingError(Exception):
    """A rollout could not be graded; the message says by whom and why."""


class GraderConfigError(ValueError):
    """The configuration asks a grader for something it cannot do; says what to change."""


class StepLike(Protocol):
    """Step as graders read it."""

    @property
    def action(self) -> str: ...

    @property
    def observation(self) -> str: ...


class Transcript(Protocol):
    """Rollout as graders read it: `agentevolver.types.Trajectory` has it."""

    @property
    def messages(self) -> Sequence[dict[str, Any]]: ...

    @property
    def steps(self) -> Sequence[StepLike]: ...


class Grader(Protocol):
    """Grader of rollouts; safe for many at once on one event loop."""

    @property
    def name(self) -> str: ...

    async def grade(self, task: Task, trajectory: Transcript, client: Instances, instance_id: str) -> Outcome:
        """Grade a rollout whose instance is still open;
        raises GradingError, and what the client raises (`EnvServiceError`)."""
        ...


def bare_query(task: Task, messages: Sequence[dict[str, Any]]) -> str:
    """Return what the user asked, without experience text: the task's own query, or what the environment asked.

    For a task of the environment this is `metadata["query"]` where whoever injected something into the opening kept it
    there, else the last message before the first action.
    """
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

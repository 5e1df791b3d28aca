"""Finished rollouts as input of distillation: task, steps and outcome, with injected guidance stripped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentevolver.types import Trajectory
from agentevolver.utils.openings import without_query
from experience_manager.guide import Message, strip


@dataclass(frozen=True, slots=True)
class PastAttempt:
    task_id: str
    trajectory_id: str
    opening: str
    task: str
    steps: tuple[tuple[int, str, str], ...]  # (index, action, observation)
    score: float
    success: bool
    group_id: str = ""
    validation: bool = False
    guided: bool = False
    env_type: str = ""


Group = Sequence[PastAttempt]


def read_attempts(trajectories: Iterable[Trajectory], success_threshold: float | None = None) -> list[PastAttempt]:
    """Return the graded rollouts. Success is `score >= success_threshold`, or the grader's verdict if that is None."""
    attempts = []
    for trajectory in trajectories:
        outcome, task = trajectory.outcome, trajectory.task
        if outcome is None or not trajectory.stop_reason.happened:
            continue  # a failed rollout, or one without a grade
        injected = trajectory.guidance.injected if trajectory.guidance is not None else ""
        opening, query = opening_and_task(strip(trajectory.messages, injected), task.query)
        attempts.append(
            PastAttempt(
                task_id=task.task_id,
                trajectory_id=trajectory.trajectory_id,
                opening=opening,
                task=query,
                steps=tuple((step.index, step.action, step.observation) for step in trajectory.steps),
                score=outcome.score,
                success=outcome.success if success_threshold is None else outcome.score >= success_threshold,
                group_id=trajectory.group_id,
                validation=task.is_validation,
                guided=trajectory.guided,
                env_type=task.env_type,
            )
        )
    return attempts


def name_of_task(opening: str, task: str) -> str:
    """Return a content-derived id for a task without an id."""
    return "opening-" + hashlib.sha256(f"{opening}\0{task}".encode()).hexdigest()[:16]


def opening_and_task(messages: Sequence[Message], query: str | None = None) -> tuple[str, str]:
    """Split the opening into its rules and the task: `query` if given, else the last opening message."""
    opening = []
    for message in messages:
        if message["role"] == "assistant":
            break
        opening.append(content_of(message))
    *rules, last = opening or [""]
    if query and query in last:
        return without_query([{"content": text} for text in opening], query), query
    return "\n\n".join(rules), query or last


def group_by_task(attempts: Iterable[PastAttempt], size: int) -> list[list[PastAttempt]]:
    """Group rollouts by task, at most `size` in a group; order is kept."""
    by_task: dict[tuple[str, str], list[PastAttempt]] = {}
    for attempt in attempts:
        by_task.setdefault((attempt.env_type, attempt.task_id), []).append(attempt)
    return [of_task[i : i + size] for of_task in by_task.values() for i in range(0, len(of_task), size)]


def content_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return "\n".join(filter(None, (str(content or ""), *map(_written, message.get("tool_calls") or ()))))


def _written(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return str(call)
    return f"<tool_call>{function.get('name')} {function.get('arguments')}</tool_call>"

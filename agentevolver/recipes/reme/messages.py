"""Conversion between rollouts and the lists of messages that ReMe's routes carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experience_manager.attempts import PastAttempt, content_of, name_of_task, opening_and_task
from experience_manager.guide import Message


def from_messages(
    messages: Sequence[Message],
    score: float,
    *,
    success_threshold: float,
    task_id: str = "",
    query: str = "",
    trajectory_id: str = "",
) -> PastAttempt:
    """Return a past rollout built from its messages. A task without an id is identified by its opening and text."""
    opening, task = opening_and_task(messages, query or None)
    steps: list[tuple[int, str, str]] = []
    for message in messages:
        text = content_of(message)
        if message["role"] == "assistant":
            steps.append((len(steps), text, ""))
        elif steps:
            index, action, observation = steps[-1]
            steps[-1] = (index, action, f"{observation}\n{text}" if observation else text)
    return PastAttempt(
        task_id or name_of_task(opening, task),
        trajectory_id,
        opening,
        task,
        tuple(steps),
        score,
        score >= success_threshold,
    )


def to_messages(attempt: PastAttempt) -> dict[str, Any]:
    messages = [{"role": "system", "content": attempt.opening}] if attempt.opening else []
    messages.append({"role": "user", "content": attempt.task})
    for _, action, observation in attempt.steps:
        messages += [{"role": "assistant", "content": action}, {"role": "user", "content": observation}]
    return {
        "task_id": attempt.task_id,
        "messages": messages,
        "score": attempt.score,
        "metadata": {"query": attempt.task},
    }

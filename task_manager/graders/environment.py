"""Grader `env`: the environment's own verdict."""

from __future__ import annotations

import math

from agentevolver.types import Outcome, Task
from task_manager.graders.base import GradedWorld, GradingError, Transcript


class EnvGrader:
    """Asks the environment; success is a score of 1."""

    name = "env"

    def __init__(self, sparse: bool = True) -> None:
        self._sparse = sparse

    async def grade(self, task: Task, trajectory: Transcript, client: GradedWorld, instance_id: str) -> Outcome:
        """Return the environment's score; raises GradingError for one that is no number in 0..1."""
        if task.open_query:
            raise GradingError(
                f"task {task.task_id}: the environment knows no goal for a task that was made up; use another grader"
            )
        score = await client.evaluate(instance_id, list(trajectory.messages), {"sparse": self._sparse})
        if (
            isinstance(score, bool)
            or not isinstance(score, int | float)
            or not math.isfinite(score)
            or not 0.0 <= score <= 1.0
        ):
            raise GradingError(f"task {task.task_id}: the environment graded {score!r}, expected a number in 0..1")
        return Outcome(score=float(score), success=score >= 1.0, reason="graded by the environment")

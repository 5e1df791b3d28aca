"""Graders that ask the environment: `env` (its own grade), `state` and `state-llm` (the reference's end state).

The state must be left as the reference solution leaves it, and the answer be the reference's. The check is made when a
task is verified (`world.Execution.check`) and stored with it, so grading needs neither a judge nor the reference.
Sparse: 1 if everything holds, else 0. Dense: the share of what holds beyond what an episode gets for ending at once,
scaled to 0..1. Where answers are prose (an assistant's closing words), the check can only tell that something was said:
`state-llm` then asks a judge, but only about rollouts whose state is right.
"""

from __future__ import annotations

import math

from agentevolver.types import Outcome, Task
from env_service.protocol import Instances
from task_manager.actions import read_state
from task_manager.graders.base import Grader, GradingError, Transcript
from task_manager.state import StateCheck


class EnvGrader:
    """Environment's own grade; success is a score of 1."""

    name = "env"

    def __init__(self, sparse: bool = True) -> None:
        self._sparse = sparse

    async def grade(self, task: Task, trajectory: Transcript, client: Instances, instance_id: str) -> Outcome:
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


CHECK_KEY = "state_check"


class StateGrader:
    """Grade by comparing states."""

    name = "state"

    def __init__(self, sparse: bool = True) -> None:
        self._sparse = sparse

    async def grade(self, task: Task, trajectory: Transcript, client: Instances, instance_id: str) -> Outcome:
        """Return the score of the instance's state; raises GradingError for a task without a check."""
        check = check_of(task)
        state = await read_state(client, instance_id)
        if state is None:
            raise GradingError(f"task {task.task_id}: the environment {task.env_type!r} does not tell its state")
        results = check.judge(state)
        missed = [name for name, holds in results if not holds]
        if not missed:
            return Outcome(1.0, True, "the state is the reference's")
        score = 0.0 if self._sparse else _dense(check, len(results), len(missed))
        return Outcome(score, False, "does not hold: " + "; ".join(missed))


class StateThenJudge:
    """Grade by comparing states, and by a judge who decides about a rollout whose state is right."""

    name = "state-llm"

    def __init__(self, state: StateGrader, judge: Grader) -> None:
        self._state = state
        self._judge = judge

    async def grade(self, task: Task, trajectory: Transcript, client: Instances, instance_id: str) -> Outcome:
        """Return the state's score if it is wrong, else the judge's; raises GradingError if either cannot say."""
        outcome = await self._state.grade(task, trajectory, client, instance_id)
        return await self._judge.grade(task, trajectory, client, instance_id) if outcome.success else outcome


def check_of(task: Task) -> StateCheck:
    """Return a task's machine check; raises GradingError if it has none."""
    data = task.metadata.get(CHECK_KEY)
    if data is None:
        raise GradingError(f"task {task.task_id} has no state check; grade it with a judge")
    try:
        return StateCheck.from_dict(data)
    except ValueError as error:
        raise GradingError(f"task {task.task_id}: {error}") from error


def _dense(check: StateCheck, total: int, missed: int) -> float:
    # Ending at once passes `finished` and `nothing else changed`.
    free = 1 + check.must_finish
    return max(0.0, (total - missed - free) / (total - free))

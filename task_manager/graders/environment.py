"""Graders that ask the environment."""

from __future__ import annotations

from agentevolver.types import Outcome, Task
from agentevolver.utils.numbers import score
from env_service.protocol import Instances
from task_manager.actions import read_state
from task_manager.graders.base import Grader, GradingError, Transcript
from task_manager.state import StateCheck


class EnvGrader:
    """The environment's own grade; a score of 1 is a success."""

    name = "env"

    def __init__(self, sparse: bool = True) -> None:
        self._sparse = sparse

    async def grade(self, task: Task, trajectory: Transcript, client: Instances, instance_id: str) -> Outcome:
        """Return the environment's score; raises GradingError if it is not a number in 0..1."""
        if task.open_query:
            raise GradingError(
                f"task {task.task_id}: the environment cannot grade a synthetic task: set another grader"
            )
        graded = await client.evaluate(instance_id, list(trajectory.messages), {"sparse": self._sparse})
        if isinstance(graded, bool) or (found := score(graded)) is None:
            raise GradingError(f"task {task.task_id}: the environment graded {graded!r}, expected a number in 0..1")
        return Outcome(score=found, success=found >= 1.0, reason="graded by the environment")


CHECK_KEY = "state_check"


class StateCheckGrader:
    """Grades by a task's state check, without judge or reference.

    Sparse: 1 if all conditions hold, else 0. Dense: the share of conditions beyond those that hold without acting.
    """

    name = "state"

    def __init__(self, sparse: bool = True) -> None:
        self._sparse = sparse

    async def grade(self, task: Task, trajectory: Transcript, client: Instances, instance_id: str) -> Outcome:
        check = check_of(task)
        state = await read_state(client, instance_id)
        if state is None:
            raise GradingError(f"task {task.task_id}: the environment {task.env_type!r} does not expose its state")
        results = check.judge(state)
        missed = [name for name, holds in results if not holds]
        if not missed:
            return Outcome(1.0, True, "the state is the reference's")
        score = 0.0 if self._sparse else _dense(check, len(results), len(missed))
        return Outcome(score, False, "does not hold: " + "; ".join(missed))


class StateThenJudge:
    """Grades by the state check, then asks a judge about rollouts that pass it.

    For answers in prose: the check only sees that there is one.
    """

    name = "state-llm"

    def __init__(self, state: StateCheckGrader, judge: Grader) -> None:
        self._state = state
        self._judge = judge

    async def grade(self, task: Task, trajectory: Transcript, client: Instances, instance_id: str) -> Outcome:
        outcome = await self._state.grade(task, trajectory, client, instance_id)
        return await self._judge.grade(task, trajectory, client, instance_id) if outcome.success else outcome


def check_of(task: Task) -> StateCheck:
    """Return a task's state check; raises GradingError if it has none."""
    data = task.metadata.get(CHECK_KEY)
    if data is None:
        raise GradingError(f"task {task.task_id} has no state check: grade it with a judge")
    try:
        return StateCheck.from_dict(data)
    except ValueError as error:
        raise GradingError(f"task {task.task_id}: {error}") from error


def _dense(check: StateCheck, total: int, missed: int) -> float:
    # Ending the episode at once already passes `finished` and `nothing else changed`.
    free = 1 + check.must_finish
    return max(0.0, (total - missed - free) / (total - free))

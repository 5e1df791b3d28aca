"""LLM graders, under AgentEvolver's names.

Scores are 0 if irrelevant, 0..40 if not achieved, 60..100 if achieved, divided by 100.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from agentevolver.llm.asking import Asker, Prompt
from agentevolver.llm.errors import LLMError
from agentevolver.llm.settings import Role
from agentevolver.types import Outcome, Task
from agentevolver.utils.openings import without_query
from env_service.protocol import Instances
from task_manager import prompts
from task_manager.graders.base import GradingError, StepLike, Transcript, bare_query, opening_of
from task_manager.replies import GradeReply
from task_manager.settings import MAX_OBSERVATION_CHARS
from task_manager.tasks import solution_of

if TYPE_CHECKING:
    from agentevolver.llm.client import LLM


REPETITION_CAP = 0.2
RUNAWAY = 3
AVERAGED_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class JudgeVariant:
    with_reference: bool = False  # the judge sees the reference solution
    constrained: bool = False  # the prompt holds the judge's mean score to a target
    averaged: bool = False  # several verdicts are averaged


KINDS: dict[str, JudgeVariant] = {
    "llm": JudgeVariant(),
    "llm-gt": JudgeVariant(with_reference=True),
    "llm-binary": JudgeVariant(constrained=True),
    "llm-binary-no_constraint": JudgeVariant(),
    "llm-binary-gt": JudgeVariant(with_reference=True, constrained=True),
    "llm-binary-gt-no_constraint": JudgeVariant(with_reference=True),
    "avg-llm": JudgeVariant(averaged=True),
    "avg-llm-binary-gt": JudgeVariant(with_reference=True, constrained=True, averaged=True),
}


class RunningMean:
    """The judge's mean score, and a slower target mean for its prompt: exponential averages, both starting at 0.3."""

    def __init__(self) -> None:
        self.mean = 0.3
        self.target = 0.3

    def update(self, score: float) -> None:
        self.mean = 0.9 * self.mean + 0.1 * score
        self.target = 0.95 * self.target + 0.05 * score


class JudgeGrader:
    """Grades by asking the judge.

    `samples`: verdicts of an averaging grader. `max_chars`: limit of an observation in prompts.
    """

    def __init__(
        self,
        name: str,
        llm: LLM,
        *,
        samples: int = 3,
        temperature: float = 0.0,
        max_chars: int = MAX_OBSERVATION_CHARS,
    ) -> None:
        self.name = name
        self._kind = KINDS[name]
        self._asker = Asker(llm)
        self._max_chars = max_chars
        self._samples = samples if self._kind.averaged else 1
        # At temperature 0 all verdicts to average would be equal.
        self._temperature = max(temperature, AVERAGED_TEMPERATURE) if self._kind.averaged else temperature
        self.running = RunningMean()

    async def grade(self, task: Task, trajectory: Transcript, client: Instances, instance_id: str) -> Outcome:
        """Return the judge's grade; raises GradingError if half of its verdicts, or the reference, are missing."""
        if not trajectory.steps:
            raise GradingError(f"task {task.task_id}: a rollout without steps cannot be graded")
        prompt = self._prompt(task, trajectory)
        asked = await asyncio.gather(*(self._ask(prompt, number) for number in range(self._samples)))
        replies = [reply for reply in asked if isinstance(reply, GradeReply)]
        lost = [error for error in asked if isinstance(error, LLMError)]
        if 2 * len(lost) >= self._samples:
            raise GradingError(f"task {task.task_id}: {self.name}: {lost[0]}") from lost[0]
        outcome = _outcome(replies, is_runaway=is_runaway(trajectory.steps))
        self.running.update(outcome.score)
        return outcome

    async def _ask(self, prompt: Prompt, number: int) -> GradeReply | LLMError:
        try:
            return await self._asker.structured(
                Role.JUDGE, prompt, GradeReply, temperature=self._temperature, seed=number
            )
        except LLMError as error:
            return error

    def _prompt(self, task: Task, trajectory: Transcript) -> Prompt:
        opening = opening_of(trajectory.messages)
        reference = solution_of(task) if self._kind.with_reference else None
        if self._kind.with_reference and not reference:
            raise GradingError(f"task {task.task_id} has no reference solution, which grader {self.name} compares with")
        query = bare_query(task, trajectory.messages)
        held_to = (self.running.mean, self.running.target) if self._kind.constrained else None
        steps = [(i, step.action, step.observation) for i, step in enumerate(trajectory.steps)]
        told = without_query(opening, query)
        chars = self._max_chars
        return lambda room: prompts.grade(
            told, query, steps, reference=reference, mean_and_target=held_to, max_chars=chars, room=room
        )


def _outcome(replies: Sequence[GradeReply], *, is_runaway: bool) -> Outcome:
    score = statistics.fmean(reply.score / 100 for reply in replies)
    achieved = 2 * sum(reply.achieved for reply in replies) > len(replies)
    reason = " | ".join(prompts.one_line(reply.reason) for reply in replies)
    # Repetition is counted here instead of by the judge.
    if is_runaway:
        return Outcome(min(score, REPETITION_CAP), False, f"runaway repetition; {reason}")
    return Outcome(score, achieved, reason)


def is_runaway(steps: Sequence[StepLike]) -> bool:
    """Whether an action got the same observation `RUNAWAY` times in a row."""
    run = 1
    for last, step in pairwise(steps):
        run = run + 1 if (last.action, last.observation) == (step.action, step.observation) else 1
        if run >= RUNAWAY:
            return True
    return False

"""Graders by name, and the one that a task names.

`Graders` is what a rollout worker holds: it grades each task by its own evaluator, and shows a share of the rollouts to
a second grader if the configuration wants the two compared.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentevolver.types import Outcome, Task
from agentevolver.utils import seeds
from task_manager.graders.agreement import ComparedOutcome
from task_manager.graders.base import GradedWorld, Grader, GraderMisuse, GradingError, Transcript
from task_manager.graders.environment import EnvGrader
from task_manager.graders.judge import KINDS, JudgeGrader
from task_manager.graders.state import StateGrader, StateThenJudge
from task_manager.settings import MAX_OBSERVATION_CHARS, GraderSettings

if TYPE_CHECKING:
    from agentevolver.llm.client import LLM


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bench:
    """What graders are made from. `llm` is None where no judge is configured."""

    settings: GraderSettings
    llm: LLM | None
    sparse: bool = True
    max_observation_chars: int = MAX_OBSERVATION_CHARS


GRADERS: dict[str, Callable[[Bench], Grader]] = {}


def register(name: str) -> Callable[[Callable[[Bench], Grader]], Callable[[Bench], Grader]]:
    """Make a grader known under a name."""

    def keep(make: Callable[[Bench], Grader]) -> Callable[[Bench], Grader]:
        GRADERS[name] = make
        return make

    return keep


def make_grader(name: str, bench: Bench) -> Grader:
    """Return a grader; raises GraderMisuse for a name that is none, or for a judge without a model."""
    if name not in GRADERS:
        raise GraderMisuse(f"there is no grader {name!r}; graders are {', '.join(sorted(GRADERS))}")
    return GRADERS[name](bench)


def _register_own() -> None:
    GRADERS["env"] = lambda bench: EnvGrader(bench.sparse)
    GRADERS["state"] = lambda bench: StateGrader(bench.sparse)
    GRADERS["state-llm"] = _state_then_judge
    for name in KINDS:
        GRADERS[name] = _judge(name)


def _state_then_judge(bench: Bench) -> Grader:
    judge = bench.settings.fallback_grader
    if judge not in KINDS:
        raise GraderMisuse(
            f"grader state-llm needs a judge beside the state, and task_manager.grader.fallback_grader is {judge}"
        )
    return StateThenJudge(StateGrader(bench.sparse), make_grader(judge, bench))


def _judge(name: str) -> Callable[[Bench], Grader]:
    def make(bench: Bench) -> Grader:
        if bench.llm is None:
            raise GraderMisuse(f"grader {name} needs a language model: configure the role judge in the section llm")
        settings = bench.settings
        chars = bench.max_observation_chars
        return JudgeGrader(name, bench.llm, samples=settings.samples, temperature=settings.temperature, max_chars=chars)

    return make


_register_own()


class Graders:
    """Grades each task by the grader that it names."""

    def __init__(self, bench: Bench, rng: random.Random | None = None) -> None:
        self._bench = bench
        self._made: dict[str, Grader] = {}
        self._rng = rng

    async def grade(self, task: Task, trajectory: Transcript, client: GradedWorld, instance_id: str) -> Outcome:
        """Return the outcome; raises GradingError, GraderMisuse, and what the client raises."""
        outcome = await self._grader(task.evaluator).grade(task, trajectory, client, instance_id)
        settings = self._bench.settings
        second = settings.compare_with
        if second is None or second == task.evaluator or self._chance() >= settings.compare_share:
            return outcome
        try:
            other = await self._grader(second).grade(task, trajectory, client, instance_id)
        except GradingError as error:
            # The second grader is only measured; what it cannot grade keeps its first grade.
            logger.info("grader %s could not be compared: %s", second, error)
            return outcome
        return ComparedOutcome.of(outcome, second, other)

    def _chance(self) -> float:
        if self._rng is not None:
            return self._rng.random()
        draws = seeds.current()
        return random.Random(draws.seed("compare") if draws is not None else None).random()

    def _grader(self, name: str) -> Grader:
        if name not in self._made:
            self._made[name] = make_grader(name, self._bench)
        return self._made[name]

"""Registry of graders by name, and the agreement of two graders on the same rollouts."""

from __future__ import annotations

import logging
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentevolver.types import Outcome, Task, Trajectory
from agentevolver.utils import seeds
from agentevolver.utils.names import load_named
from agentevolver.utils.numbers import score
from env_service.protocol import Instances
from task_manager.graders.base import Grader, GraderConfigError, GradingError, Transcript
from task_manager.graders.environment import EnvGrader, StateCheckGrader, StateThenJudge
from task_manager.graders.judge import KINDS, JudgeGrader
from task_manager.settings import MAX_OBSERVATION_CHARS, GraderSettings

if TYPE_CHECKING:
    from agentevolver.llm.client import LLM


def agreement(pairs: Sequence[tuple[bool, float, bool, float]]) -> dict[str, float]:
    """Return how far a second grader agrees with the first; empty without pairs.

    Args:
        pairs: (success, score) of the first grader, then of the second, per rollout.

    Returns:
        n; agreement: share of equal success; kappa: Cohen's; false_success and false_failure: share of the first
            grader's failures that the second calls successes, and vice versa; score_gap: mean absolute difference of
            scores.
    """
    if not pairs:
        return {}
    n = len(pairs)
    observed = sum(first == second for first, _, second, _ in pairs) / n
    share_first, share_second = sum(p[0] for p in pairs) / n, sum(p[2] for p in pairs) / n
    by_chance = share_first * share_second + (1 - share_first) * (1 - share_second)
    failures = [second for first, _, second, _ in pairs if not first]
    successes = [second for first, _, second, _ in pairs if first]
    return {
        "n": float(n),
        "agreement": observed,
        "kappa": (observed - by_chance) / (1 - by_chance) if by_chance < 1 else float(observed == 1),
        "false_success": sum(failures) / len(failures) if failures else 0.0,
        "false_failure": sum(not second for second in successes) / len(successes) if successes else 0.0,
        "score_gap": statistics.fmean(abs(a - b) for _, a, _, b in pairs),
    }


def agreement_metrics(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Return `grader/<first>_vs_<second>/<name>` for trajectories with two grades."""
    pairs: dict[str, list[tuple[bool, float, bool, float]]] = {}
    for trajectory in trajectories:
        outcome = trajectory.outcome
        if outcome is not None and outcome.compared:
            key = f"{trajectory.task.evaluator}_vs_{outcome.compared['grader']}"
            second = (outcome.compared["success"], outcome.compared["score"])
            pairs.setdefault(key, []).append((outcome.success, outcome.score, *second))
    return {f"grader/{key}/{name}": value for key, found in pairs.items() for name, value in agreement(found).items()}


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GraderContext:
    """What graders are made from.

    `llm` is None if no judge is configured. `run` is the run's configuration (`agentevolver.config.schema.Settings`)
    for custom graders, None outside training.
    """

    settings: GraderSettings
    llm: LLM | None
    sparse: bool = True
    max_observation_chars: int = MAX_OBSERVATION_CHARS
    run: Any = None


def _checked(task: Task, outcome: Outcome) -> Outcome:
    """Return a grade in Python's numbers. Raises GradingError."""
    if (found := score(outcome.score)) is None:
        raise GradingError(f"task {task.task_id}: its grader scored {outcome.score!r}, expected a number in 0..1")
    return replace(outcome, score=found, success=bool(outcome.success))


def make_grader(name: str, context: GraderContext) -> Grader:
    """Make a grader by name, or from `package.module:Class`; raises GraderConfigError."""
    if name in GRADERS:
        return GRADERS[name](context)
    if ":" not in name:
        raise GraderConfigError(f"unknown grader {name!r}: write one of {', '.join(sorted(GRADERS))}")
    try:
        return load_named(name, GRADERS)(context)
    except (TypeError, ValueError) as error:
        raise GraderConfigError(f"grader {name!r} cannot be made: {error}") from error


def _state_then_judge(context: GraderContext) -> Grader:
    judge = context.settings.fallback_grader
    if judge not in KINDS:
        raise GraderConfigError(
            f"grader state-llm needs a judge beside the state, and task_manager.grader.fallback_grader is {judge}"
        )
    return StateThenJudge(StateCheckGrader(context.sparse), make_grader(judge, context))


def _judge(name: str) -> Callable[[GraderContext], Grader]:
    def make(context: GraderContext) -> Grader:
        if context.llm is None:
            raise GraderConfigError(
                f"grader {name} needs a language model: configure the role judge in the section llm"
            )
        settings = context.settings
        chars = context.max_observation_chars
        return JudgeGrader(
            name, context.llm, samples=settings.samples, temperature=settings.temperature, max_chars=chars
        )

    return make


GRADERS: dict[str, Callable[[GraderContext], Grader]] = {
    "env": lambda context: EnvGrader(context.sparse),
    "state": lambda context: StateCheckGrader(context.sparse),
    "state-llm": _state_then_judge,
    **{name: _judge(name) for name in KINDS},
}


class Graders:
    """Grades each task with its own evaluator, and a share of rollouts with a second grader for comparison."""

    def __init__(self, context: GraderContext) -> None:
        self._context = context
        self._made: dict[str, Grader] = {}

    async def grade(self, task: Task, trajectory: Transcript, client: Instances, instance_id: str) -> Outcome:
        """Return the outcome; raises GradingError, GraderConfigError, and what the client raises."""
        outcome = _checked(task, await self._grader(task.evaluator).grade(task, trajectory, client, instance_id))
        settings = self._context.settings
        second = settings.compare_with
        if second is None or second == task.evaluator or self._chance() >= settings.compare_share:
            return outcome
        try:
            other = _checked(task, await self._grader(second).grade(task, trajectory, client, instance_id))
        except GradingError as error:
            # The second grade is only a measurement.
            logger.info("grader %s could not be compared: %s", second, error)
            return outcome
        compared = {"grader": second, "score": other.score, "success": other.success, "reason": other.reason}
        return replace(outcome, compared=compared)

    def _chance(self) -> float:
        draws = seeds.current()
        return random.Random(draws.seed("compare") if draws is not None else None).random()

    def _grader(self, name: str) -> Grader:
        if name not in self._made:
            self._made[name] = make_grader(name, self._context)
        return self._made[name]

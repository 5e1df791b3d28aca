"""Steps without a learning signal, in which all rollouts of every task have one score: a forecast before the first one,
and a warning after several."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import comb, prod

from agentevolver.trainer.metrics import share_without_signal
from agentevolver.trainer.monitor.measured import Measured
from agentevolver.trainer.parts import TrainerPart
from agentevolver.types import Trajectory

logger = logging.getLogger(__name__)

# Values of `algorithm.adv_estimator` that compare a rollout beyond its group: equal scores still carry a signal.
BEYOND_GROUPS = ("gae", "reinforce_plus_plus")
# Beyond these the forecast advises.
MOST_WITHOUT_SIGNAL, MOST_SUCCESS = 0.6, 0.95
_NEVER = (
    "none succeeds: take easier tasks, grade them in parts (actor_rollout_ref.rollout.sparse=false), or let the policy "
    "begin by imitating successes (cold_start.files)"
)
_ALWAYS = "each succeeds: take harder tasks"
_MIXED = "take tasks that the policy solves now and then (a larger actor_rollout_ref.rollout.n finds more of them)"


class SignalWatch(TrainerPart):
    """Warns after `steps` steps in a row without a signal, and again whenever that number doubles. None: never.
    Forecasts the share of groups of `n` rollouts without a signal; nothing if `n` is 1.

    `warn` is called after each step with the current warning, or None; `tell` with the forecast.
    """

    def __init__(
        self,
        steps: int | None,
        n: int,
        warn: Callable[[str | None], None] = lambda _: None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._warn, self._tell, self._n = warn, tell, n
        self._steps = self._bound = steps
        self._in_a_row = 0
        self._said: str | None = None

    def after_rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        self._warn(self.look(trajectories))
        graded = [one for one in trajectories if one.outcome is not None]
        if self._steps is None or not graded:
            return {}
        return {"rollout/signal": float(share_without_signal(graded) < 1.0)}

    def after_validation(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        said = forecast(trajectories, self._n) if step == 0 and self._n > 1 else None
        if said is not None:
            self._tell(said)
            logger.info("%s", said)
        return {}

    def look(self, trajectories: Sequence[Trajectory]) -> str | None:
        """Return the current warning after a step's trajectories, or None."""
        # The environment's scores, not those of reward stages: a penalty puts a success below 1.
        scores = [one.outcome.score for one in trajectories if one.outcome is not None]
        if self._bound is None or not scores:
            return None
        if share_without_signal(trajectories) < 1.0:
            self._bound, self._in_a_row, self._said = self._steps, 0, None
            return None
        self._in_a_row += 1
        if self._in_a_row < self._bound:
            return self._said
        self._bound = 2 * self._in_a_row
        problem = Measured.of(trajectories).problem()
        advice = problem or (_NEVER if max(scores) <= 0.0 else _ALWAYS if min(scores) >= 1.0 else _MIXED)
        self._said = (
            f"in the last {self._in_a_row} training steps all rollouts of every task scored alike, so that the policy "
            f"learnt nothing from them; {advice} (docs/troubleshooting.md#it-runs-but)"
        )
        logger.warning("%s", self._said)
        return self._said


def forecast(trajectories: Sequence[Trajectory], n: int) -> str | None:
    """Return a sentence with the share of groups of `n` without a signal, estimated from the first validation. None if
    a score is neither 0 nor 1, or nothing was graded."""
    tasks: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for one in trajectories:
        if one.outcome is not None:
            tasks[one.task.env_type, one.task.task_id].append(one.outcome.success)
            if one.outcome.score not in (0.0, 1.0):
                return None
    if not tasks:
        return None
    found = [(sum(successes), len(successes)) for successes in tasks.values()]
    share, success = expected_without_signal(found, n), sum(c / m for c, m in found) / len(found)
    at_least = "at least " if all(m == 1 for _, m in found) else ""
    said = f"with {success:.2f} success at the start {at_least}about {share:.0%} of groups of {n} have no signal"
    if success > MOST_SUCCESS:
        return f"{said}. Warning: there is next to nothing to learn here, take harder tasks"
    if share > MOST_WITHOUT_SIGNAL:
        return (
            f"{said}. Warning: take a longer cold start (cold_start.files, epochs), easier tasks, or a larger "
            "actor_rollout_ref.rollout.n"
        )
    return said


def expected_without_signal(tasks: Sequence[tuple[int, int]], n: int) -> float:
    """Return the expected share of groups of `n` rollouts that all succeed or all fail: the mean over tasks of
    p^n + (1-p)^n, from (successes, rollouts) of each task.

    Unbiased if each task has `n` rollouts or more: the share of their subsets of `n` that are alike. Otherwise p is
    taken to be Beta-distributed over tasks, with the mean and the agreement of two rollouts of a task as measured; with
    one rollout each, p is taken to be one and the same, which gives a lower bound.
    """
    if all(m >= n for _, m in tasks):
        return sum((comb(c, n) + comb(m - c, n)) / comb(m, n) for c, m in tasks) / len(tasks)
    mean = sum(c / m for c, m in tasks) / len(tasks)
    pairs = [(c, m) for c, m in tasks if m > 1]
    if not pairs or mean in (0.0, 1.0):
        return mean**n + (1 - mean) ** n
    both = sum(c * (c - 1) / (m * (m - 1)) for c, m in pairs) / len(pairs)
    # The correlation of two rollouts of a task: 0 if all tasks are alike, 1 if each is always or never solved.
    alike = min(1.0, max(0.0, (both - mean**2) / (mean - mean**2)))
    if alike == 1.0:
        return 1.0
    rest = 1 - alike

    def all_of(p: float) -> float:
        return prod((p * rest + i * alike) / (rest + i * alike) for i in range(n))

    return all_of(mean) + all_of(1 - mean)


def make_watch(
    steps: int | None,
    estimator: str,
    n: int,
    warn: Callable[[str | None], None] = lambda _: None,
    tell: Callable[[str], None] = lambda _: None,
) -> SignalWatch:
    """Return the watch of a run. It never warns if `n` is 1, or if the estimator compares different groups."""
    return SignalWatch(None, 1, warn) if n == 1 or estimator in BEYOND_GROUPS else SignalWatch(steps, n, warn, tell)

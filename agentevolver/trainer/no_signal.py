"""Warning for steps without a learning signal: all rollouts of every task have one score."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from agentevolver.trainer.metrics import share_without_signal
from agentevolver.trainer.monitor.measured import Measured
from agentevolver.trainer.parts import TrainerPart
from agentevolver.types import Trajectory

logger = logging.getLogger(__name__)

# Values of `algorithm.adv_estimator` that compare a rollout beyond its group: equal scores still carry a signal.
BEYOND_GROUPS = ("gae", "reinforce_plus_plus")
_NEVER = (
    "none succeeds: take easier tasks, grade them in parts (actor_rollout_ref.rollout.sparse=false), or let the policy "
    "begin by imitating successes (cold_start.files)"
)
_ALWAYS = "each succeeds: take harder tasks"
_MIXED = "take tasks that the policy solves now and then (a larger actor_rollout_ref.rollout.n finds more of them)"


class SignalWatch(TrainerPart):
    """Warns after `steps` steps in a row without a signal, and again whenever that number doubles. None: never.

    `warn` is called after each step with the current warning, or None.
    """

    def __init__(self, steps: int | None, warn: Callable[[str | None], None] = lambda _: None) -> None:
        self._warn = warn
        self._steps = self._bound = steps
        self._in_a_row = 0
        self._said: str | None = None

    def after_rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        self._warn(self.look(trajectories))
        graded = [one for one in trajectories if one.outcome is not None]
        if self._steps is None or not graded:
            return {}
        return {"rollout/signal": float(share_without_signal(graded) < 1.0)}

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


def make_watch(
    steps: int | None, estimator: str, n: int, warn: Callable[[str | None], None] = lambda _: None
) -> SignalWatch:
    """Return the watch of a run; it never warns if `n` is 1 or the estimator compares beyond groups."""
    return SignalWatch(None if n == 1 or estimator in BEYOND_GROUPS else steps, warn)

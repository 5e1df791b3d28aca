"""Paired utility: the effect of an experience on success, estimated from half-guided groups.

A group gives one difference d, the mean success of its guided rollouts minus that of its unguided ones. The model is
linear with Gaussian noise: d = sum of the utilities of the shown experiences + noise, with the prior N(0, prior_sd^2)
on each utility. Each group is one update:

    gain_i = v_i / (sum of v_j + s^2),  u_i += gain_i (d - sum of u_j),  v_i *= 1 - gain_i

For one experience alone this is the posterior mean of the normal model (Gelman et al., Bayesian Data Analysis, 3rd ed.,
2.5): the mean difference times n / (n + s^2 / prior_sd^2). For several shown together it is the Kalman update with a
diagonal covariance, as team ratings use it (Herbrich et al., TrueSkill, 2006). Pairs are D2Skill's idea (arXiv
2603.28716). s^2 = (1/guided + 1/unguided) / 4 is the largest variance of a difference of two success rates. A group
whose rollouts all succeeded or all failed is left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentevolver.types import Trajectory
from experience_manager.attempts import PastAttempt

# Greatest variance of a success.
VARIANCE = 0.25


@dataclass(frozen=True, slots=True)
class Pair:
    """A half-guided group: the shown experiences, the difference of the mean successes (-1..1), and the rollouts of
    each half (>= 1)."""

    experience_ids: tuple[str, ...]
    difference: float
    guided: int
    unguided: int

    @property
    def noise(self) -> float:
        return VARIANCE * (1 / self.guided + 1 / self.unguided)


@dataclass(frozen=True, slots=True)
class UtilityEstimate:
    """Estimated utility of an experience: its number of groups, the mean, and the precision added to the prior's (0:
    none)."""

    groups: int = 0
    mean: float = 0.0
    precision: float = 0.0

    def variance(self, prior_sd: float) -> float:
        return 1 / (prior_sd**-2 + self.precision)


@dataclass(frozen=True, slots=True)
class StepPairs:
    """The pairs of a step, and how many half-guided groups were left out because all their rollouts had one outcome."""

    pairs: tuple[Pair, ...]
    without_variance: int


def pairs_of(trajectories: Sequence[Trajectory], attempts: Sequence[PastAttempt]) -> StepPairs:
    """Return the pairs of a step's training rollouts. A rollout that should have been guided but was not is in neither
    half."""
    guidance = {one.trajectory_id: one.guidance for one in trajectories}
    halves: dict[str, tuple[list[bool], list[bool]]] = defaultdict(lambda: ([], []))
    shown: dict[str, tuple[str, ...]] = {}
    for attempt in attempts:
        given = guidance[attempt.trajectory_id]
        if given is not None and given.wanted and not given.guided:
            continue
        if attempt.guided and given is not None:
            shown[attempt.group_id] = given.experience_ids
        halves[attempt.group_id][attempt.guided].append(attempt.success)
    pairs, without_variance = [], 0
    for group, ids in shown.items():
        unguided, guided = halves[group]
        if not guided or not unguided:
            continue
        if len({*guided, *unguided}) == 1:
            without_variance += 1
            continue
        difference = sum(guided) / len(guided) - sum(unguided) / len(unguided)
        pairs.append(Pair(tuple(dict.fromkeys(ids)), difference, len(guided), len(unguided)))
    return StepPairs(tuple(pairs), without_variance)


def credited(beliefs: Sequence[UtilityEstimate], pair: Pair, prior_sd: float) -> list[UtilityEstimate]:
    variances = [belief.variance(prior_sd) for belief in beliefs]
    total = math.fsum(variances) + pair.noise
    error = pair.difference - math.fsum(belief.mean for belief in beliefs)
    after = []
    for belief, variance in zip(beliefs, variances, strict=True):
        gain = variance / total
        # Equal to 1 / (v (1 - gain)) - 1 / v, without cancellation.
        gained = gain / (variance * (1 - gain))
        after.append(UtilityEstimate(belief.groups + 1, belief.mean + gain * error, belief.precision + gained))
    return after


def is_harmful(belief: UtilityEstimate, prior_sd: float, certainty: float) -> bool:
    return belief.groups > 0 and belief.mean + certainty * math.sqrt(belief.variance(prior_sd)) < 0


def report(beliefs: Iterable[UtilityEstimate], prior_sd: float, certainty: float) -> dict[str, float]:
    known = [belief for belief in beliefs if belief.groups]
    out = {"known": float(len(known)), "harmful": float(sum(is_harmful(one, prior_sd, certainty) for one in known))}
    if known:
        means = [belief.mean for belief in known]
        out |= {"mean": math.fsum(means) / len(means), "min": min(means), "max": max(means)}
    return out

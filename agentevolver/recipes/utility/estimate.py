"""Estimator of paired utility: what an experience changes, from groups of which one half was guided.

A group of a task gives one difference d, the guided rollouts' mean success less the unguided ones'. It is credited to
the experiences that guided it. The estimator is a linear model with Gaussian noise, d = sum of the utilities of those
that were shown + noise, with the prior N(0, prior_sd^2) on every utility, and each group is taken in by one update:

    gain_i = v_i / (sum of v_j + s^2),  u_i += gain_i (d - sum of u_j),  v_i *= 1 - gain_i

Alone in its groups an experience has the posterior mean of the normal model (Gelman et al., Bayesian Data Analysis,
3rd ed., 2.5): the mean difference times n / (n + s^2 / prior_sd^2), shrunk towards 0 by count. Where several are shown
together, each is credited with what the others do not explain; that is the Kalman update with a diagonal covariance,
as rating systems use it for teams (Herbrich et al., TrueSkill, 2006). The idea of a pair is D2Skill's (arXiv
2603.28716). s^2 = (1/guided + 1/unguided) / 4 is the largest variance that a difference of two means of successes can
have. A group whose rollouts all succeeded, or all failed, says nothing and counts for nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentevolver.types import Trajectory
from experience_manager.attempts import PastAttempt

# Of a success, at most.
VARIANCE = 0.25


@dataclass(frozen=True, slots=True)
class Pair:
    """Guided and unguided half of a group: the experiences that guided it, the difference of the mean successes
    (-1..1), and the rollouts of each half (>= 1)."""

    experience_ids: tuple[str, ...]
    difference: float
    guided: int
    unguided: int

    @property
    def noise(self) -> float:
        return VARIANCE * (1 / self.guided + 1 / self.unguided)


@dataclass(frozen=True, slots=True)
class Belief:
    """Estimate of an experience's utility: the groups that it was credited with, the mean, and how much precision they
    have added to the prior's (0: none)."""

    groups: int = 0
    mean: float = 0.0
    precision: float = 0.0

    def variance(self, prior_sd: float) -> float:
        return 1 / (prior_sd**-2 + self.precision)


@dataclass(frozen=True, slots=True)
class Paired:
    """Pairs of a step, and how many of its half-guided groups were left out for want of variance."""

    pairs: tuple[Pair, ...]
    without_variance: int


def pairs_of(trajectories: Sequence[Trajectory], attempts: Sequence[PastAttempt]) -> Paired:
    """Return the pairs of a step's training rollouts; a rollout that was to be guided and was not is in neither
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
    return Paired(tuple(pairs), without_variance)


def credited(beliefs: Sequence[Belief], pair: Pair, prior_sd: float) -> list[Belief]:
    """Return the beliefs about the experiences that guided a group, in their order, after its difference."""
    variances = [belief.variance(prior_sd) for belief in beliefs]
    total = math.fsum(variances) + pair.noise
    error = pair.difference - math.fsum(belief.mean for belief in beliefs)
    after = []
    for belief, variance in zip(beliefs, variances, strict=True):
        gain = variance / total
        # 1 / (v (1 - gain)) - 1 / v, which never cancels.
        gained = gain / (variance * (1 - gain))
        after.append(Belief(belief.groups + 1, belief.mean + gain * error, belief.precision + gained))
    return after


def is_harmful(belief: Belief, prior_sd: float, certainty: float) -> bool:
    """Whether a utility is below 0 by so many standard deviations of what is not known of it."""
    return belief.groups > 0 and belief.mean + certainty * math.sqrt(belief.variance(prior_sd)) < 0


def report(beliefs: Iterable[Belief], prior_sd: float, certainty: float) -> dict[str, float]:
    """Return the metrics of a pool: how many have a utility, their mean,
    least and greatest, and how many are harmful."""
    known = [belief for belief in beliefs if belief.groups]
    out = {"known": float(len(known)), "harmful": float(sum(is_harmful(one, prior_sd, certainty) for one in known))}
    if known:
        means = [belief.mean for belief in known]
        out |= {"mean": math.fsum(means) / len(means), "min": min(means), "max": max(means)}
    return out

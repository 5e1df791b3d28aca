"""Step scores and outcomes as step advantages, and those as token advantages: ADCA-GRPO and its variants.

Formulas: AgentEvolver, arXiv 2511.10395, eq. 18-21, and the two schemes of its implementation. Pure functions on
tensors, in float64 until the tokens are reached; they import torch alone, touch no state, and have no Python loop over
trajectories, steps or tokens. What is not `valid` (masked or failed rollouts) takes no part in any statistic and gets
no advantage. What is valid but not `labelled` takes part in the outcome statistics alone and gets outcome credit alone.
A group without spread is neutralised: its standardised values are 0, whichever side of the rounding its deviations fall
on.

Shapes: T trajectories, K (at least 1) steps of the longest one, B rows (a trajectory is one or more), R response
tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Scheme = Literal["decouple", "allocation"]
Statistics = Literal["equal", "pooled"]
Sigma = Literal["steps", "means"]
OutcomePlace = Literal["last_step", "all_steps", "only_prm"]

# A spread at most this large, relative to the values, is rounding.
SPREADLESS = 1e-8
# Tokens looked up at once: a working set that stays in the processor's cache, and bounds the memory needed beside the
# result.
TOKENS_AT_ONCE = 1 << 18


@dataclass(frozen=True, slots=True)
class AdcaConfig:
    """A variant of ADCA-GRPO. The defaults are the original implementation's.

    `statistics`: every trajectory has one vote in a group's mean and deviation ("equal"), or every step has one
        ("pooled").
    `sigma`: under equal votes, the deviation of steps within and between trajectories ("steps", the implementation) or
        of the
    trajectories' mean scores ("means", eq. 18), which is then at least `sigma_floor` times the group's largest |score|,
    so that no standardised score exceeds 2 / `sigma_floor` (0: no bound). `base` is the size of a decoupled score;
    standardising cancels it. The three scales are the allocation scheme's weights. A grade above `success_threshold` is
    a success.
    """

    scheme: Scheme = "decouple"
    standardise: bool = True
    statistics: Statistics = "equal"
    sigma: Sigma = "steps"
    sigma_floor: float = 0.5
    base: float = 0.2
    outcome: OutcomePlace = "last_step"
    length_normalisation: bool = False
    consistent_scale: float = 1.0
    pos_unconsistent_scale: float = 0.2
    neg_unconsistent_scale: float = 0.2
    success_threshold: float = 0.5


PRESETS: dict[str, AdcaConfig] = {"original": AdcaConfig(), "paper": AdcaConfig(sigma="means", base=1.0)}


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of T trajectories, padded to K.

    `scores` (T, K): +1 for GOOD and -1 for BAD, or any reward of a step; `lengths` (T): steps of each; `outcomes` (T):
    the score that it is trained on; `grades` (T): the one that tells whether it is a success; `groups` (T): any
    integers, equal for the rollouts of one task; `labelled` (T): whether its scores mean anything; `valid` (T): whether
    it happened. Padding may hold anything.
    """

    scores: Tensor
    lengths: Tensor
    outcomes: Tensor
    grades: Tensor
    groups: Tensor
    labelled: Tensor
    valid: Tensor

    @property
    def mask(self) -> Tensor:
        """Which places of (T, K) are steps."""
        return torch.arange(self.scores.shape[1], device=self.scores.device) < self.lengths[:, None]


@dataclass(frozen=True, slots=True)
class Credit:
    """Credit of the steps: all (T, K) but `outcome` (T); 0 in padding, and 0 for what is not valid.

    `raw` is a step's score before and `attribution` after standardising, `outcome` the standardised outcome, `rewards`
    both fused, `shares` what of them the outcome is, `advantages` the sum of the rewards from a step on.
    """

    raw: Tensor
    attribution: Tensor
    outcome: Tensor
    rewards: Tensor
    shares: Tensor
    advantages: Tensor


def alpha_at(
    step: int,
    *,
    alpha: float,
    alpha_min: float = 0.0,
    cosine: bool = False,
    total_steps: int = 100,
    progress: float | None = None,
) -> float:
    """Return the weight of the attribution at a training step.

    With `cosine` it goes from `alpha` to `alpha_min` over `total_steps`, along half a cosine, and stays there.
    `progress` in 0..1 replaces step / total_steps.
    """
    p = min(max(step / total_steps if progress is None else progress, 0.0), 1.0)
    return alpha_min + 0.5 * (alpha - alpha_min) * (1.0 + math.cos(math.pi * p)) if cosine else alpha


def step_credit(steps: Steps, config: AdcaConfig, alpha: float) -> Credit:
    """Return step rewards and advantages of a batch.

    The attribution of a step is its raw score, standardised over the labelled steps of its group; the outcome is
    standardised over the group; the reward of a step is alpha x attribution, plus the outcome on the last step or on
    all (eq. 20); its advantage is the sum of the rewards from it to the end (eq. 21).
    """
    mask = steps.mask & steps.valid[:, None]
    labelled = mask & steps.labelled[:, None]
    raw = torch.where(labelled, raw_scores(steps, config), 0.0)
    attribution = standardise_scores(raw, labelled, steps.groups, config) if config.standardise else raw
    outcome = standardise_outcomes(steps.outcomes, steps.groups, steps.valid)
    rewards, shares = _fuse(attribution, outcome, steps.lengths, mask, config, alpha)
    return Credit(raw, attribution, outcome, rewards, shares, suffix_sum(rewards) * mask)


def raw_scores(steps: Steps, config: AdcaConfig) -> Tensor:
    """Return scores (T, K) before standardising; padding holds anything.

    Decouple: base x score. Allocation: a success is +1 and a failure -1, shared out over the trajectory's steps by
    weight: a label that agrees with the outcome weighs `consistent_scale`, a BAD of a success `pos_unconsistent_scale`,
    a GOOD of a failure `neg_unconsistent_scale` (its absolute value); nothing is shared out when the weights vanish.
    """
    scores = steps.scores.double()
    if config.scheme == "decouple":
        return config.base * scores
    success = (steps.grades > config.success_threshold)[:, None]
    disagreeing = torch.where(
        success, scores.new_tensor(config.pos_unconsistent_scale), abs(config.neg_unconsistent_scale)
    )
    weights = torch.where((scores > 0) == success, config.consistent_scale, disagreeing) * steps.mask
    total = weights.sum(1, keepdim=True)
    share = torch.where(total > SPREADLESS, weights / total.clamp_min(SPREADLESS), 0.0)
    return torch.where(success, share, -share)


def standardise_scores(raw: Tensor, labelled: Tensor, groups: Tensor, config: AdcaConfig) -> Tensor:
    """Return (raw - mean) / deviation (T, K) over each group's labelled steps;
    0 elsewhere and where there is no spread (eq. 18).

    `raw` (T, K) is 0 where `labelled` (T, K) is false. `config` chooses the statistics.
    """
    counts = labelled.sum(1).double()
    votes = (counts > 0).double() if config.statistics == "equal" else counts
    weight = votes / counts.clamp_min(1.0)
    index, total = _group_totals(votes, groups)
    total = total.clamp_min(1.0)
    mean = (_sum(raw.sum(1) * weight, index, total) / total)[index]
    centred = (raw - mean[:, None]) * labelled
    of_means = config.statistics == "equal" and config.sigma == "means"
    squares = votes * (raw.sum(1) * weight - mean) ** 2 if of_means else weight * (centred**2).sum(1)
    deviation = (_sum(squares, index, total) / total).sqrt()[index]
    largest = _largest(raw.abs().amax(1), index, total)
    if of_means:
        deviation = torch.maximum(deviation, config.sigma_floor * largest)
    return _divide(centred, deviation[:, None], largest[:, None])


def standardise_outcomes(outcomes: Tensor, groups: Tensor, valid: Tensor) -> Tensor:
    """Return (R - mean) / population deviation (T) over each group's valid trajectories;
    0 where there is no spread (eq. 19)."""
    values = torch.where(valid, outcomes.double(), 0.0)
    index, total = _group_totals(valid.double(), groups)
    total = total.clamp_min(1.0)
    centred = (values - (_sum(values, index, total) / total)[index]) * valid
    deviation = (_sum(centred**2, index, total) / total).sqrt()[index]
    return _divide(centred, deviation, _largest(values.abs(), index, total))


def suffix_sum(rewards: Tensor) -> Tensor:
    """Return for every place of (T, K) the sum from it to the end of its row (eq. 21, no discount)."""
    return rewards.flip(1).cumsum(1).flip(1)


def to_tokens(per_step: Tensor, row_trajectory: Tensor, step_ids: Tensor) -> Tensor:
    """Broadcast step advantages to tokens: (B, R) float32, for every token its step's value, 0 where `step_ids` is -1.

    Args:
        per_step: (T, K) values.
        row_trajectory: (B) the trajectory of each row, -1 for a row that gets nothing.
        step_ids: (B, R) the step of each token, counted through the trajectory and below K.
    """
    rows, width = step_ids.shape
    # Both indices may be -1: the last row and the first column are the zeros they find.
    table = torch.zeros(per_step.shape[0] + 1, per_step.shape[1] + 1, dtype=torch.float32, device=step_ids.device)
    table[:-1, 1:] = per_step
    result = torch.empty(rows, width, dtype=torch.float32, device=step_ids.device)
    stride = max(1, TOKENS_AT_ONCE // max(width, 1))
    for start in range(0, rows, stride):
        part = slice(start, start + stride)
        index = step_ids[part].long() + 1
        torch.gather(table[row_trajectory[part]], 1, index, out=result[part])
    return result


def _fuse(
    attribution: Tensor, outcome: Tensor, lengths: Tensor, mask: Tensor, config: AdcaConfig, alpha: float
) -> tuple[Tensor, Tensor]:
    """Return the rewards (T, K) and what of them the outcome is."""
    if config.outcome == "only_prm":
        rewards, shares = attribution, torch.zeros_like(attribution)
    else:
        places = torch.arange(attribution.shape[1], device=attribution.device)
        here = mask if config.outcome == "all_steps" else mask & (places == lengths[:, None] - 1)
        shares = outcome[:, None] * here
        rewards = alpha * attribution + shares
    if config.length_normalisation:
        size = lengths.clamp_min(1).double().sqrt()[:, None]
        rewards, shares = rewards / size, shares / size
    return rewards, shares


def _divide(centred: Tensor, deviation: Tensor, largest: Tensor) -> Tensor:
    """Return centred / deviation, and 0 where the deviation is rounding beside the group's largest value."""
    spread = deviation > SPREADLESS * largest
    return torch.where(spread, centred / torch.where(spread, deviation, 1.0), 0.0)


def _group_totals(votes: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return each trajectory's group as an index without gaps (T), and the votes of each group (G)."""
    names, index = torch.unique(groups, return_inverse=True)
    return index, torch.zeros(len(names), dtype=torch.float64, device=votes.device).index_add_(0, index, votes)


def _sum(values: Tensor, index: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).index_add_(0, index, values)


def _largest(values: Tensor, index: Tensor, like: Tensor) -> Tensor:
    """Return the largest value of each trajectory's group (T)."""
    return torch.zeros_like(like).scatter_reduce_(0, index, values, "amax")[index]

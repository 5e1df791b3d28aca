"""ADCA-GRPO and its variants: step scores and outcomes become step advantages, and those become token advantages.

Formulas: AgentEvolver, arXiv 2511.10395, eq. 18-21, and the two schemes of its implementation. Shapes: T trajectories,
K >= 1 steps of the longest one, B rows, R response tokens.
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

# Relative spread below which a group counts as constant. Without it, rounding errors would be standardised to size 1.
SPREADLESS = 1e-8
# Tokens per gather: the block fits into the CPU's cache, and bounds the extra memory.
TOKENS_AT_ONCE = 1 << 18


@dataclass(frozen=True, slots=True)
class AdcaConfig:
    """A variant of ADCA-GRPO. The defaults are the original implementation's."""

    scheme: Scheme = "decouple"
    standardise: bool = True
    # In a group's mean and deviation, each trajectory has one vote (equal) or each step (pooled).
    statistics: Statistics = "equal"
    # With equal votes, the deviation of all steps, or of the trajectories' mean scores (eq. 18).
    sigma: Sigma = "steps"
    # Least deviation of means, relative to the group's largest |score|; it bounds scores by 2 / sigma_floor.
    sigma_floor: float = 0.5
    base: float = 0.2  # size of a decoupled score before standardising
    outcome: OutcomePlace = "last_step"
    length_normalisation: bool = False
    # Weights of the allocation scheme.
    consistent_scale: float = 1.0
    pos_unconsistent_scale: float = 0.2
    neg_unconsistent_scale: float = 0.2
    success_threshold: float = 0.5


PRESETS: dict[str, AdcaConfig] = {"original": AdcaConfig(), "paper": AdcaConfig(sigma="means", base=1.0)}


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of T trajectories, padded to K with any values."""

    scores: Tensor  # (T, K): +1 GOOD and -1 BAD, or a reward per step
    lengths: Tensor  # (T) number of steps
    outcomes: Tensor  # (T) scores to train on
    grades: Tensor  # (T) scores that decide success
    groups: Tensor  # (T) equal integers for the rollouts of one task
    labelled: Tensor  # (T) whether `scores` are labels; other trajectories get outcome credit only
    valid: Tensor  # (T) others are left out of all statistics, and get no advantage

    @property
    def mask(self) -> Tensor:
        return torch.arange(self.scores.shape[1], device=self.scores.device) < self.lengths[:, None]


@dataclass(frozen=True, slots=True)
class Credit:
    """Credit of steps (T, K); 0 in padding and for invalid trajectories."""

    raw: Tensor  # scores before standardising
    attribution: Tensor  # standardised scores
    outcome: Tensor  # (T) standardised outcomes
    rewards: Tensor  # attribution and outcome combined
    shares: Tensor  # the outcome's part of the rewards
    advantages: Tensor  # sums of the rewards from a step on


def alpha_at(
    step: int,
    *,
    alpha: float,
    alpha_min: float = 0.0,
    cosine: bool = False,
    total_steps: int = 100,
) -> float:
    """Return the attribution's weight at a training step.

    With `cosine` it falls from `alpha` to `alpha_min` over `total_steps` along half a cosine.
    """
    p = min(step / total_steps, 1.0)
    return alpha_min + 0.5 * (alpha - alpha_min) * (1.0 + math.cos(math.pi * p)) if cosine else alpha


def step_credit(steps: Steps, config: AdcaConfig, alpha: float) -> Credit:
    """Return step rewards (eq. 20) and advantages (eq. 21) of a batch."""
    mask = steps.mask & steps.valid[:, None]
    labelled = mask & steps.labelled[:, None]
    raw = torch.where(labelled, raw_scores(steps, config), 0.0)
    attribution = standardise_scores(raw, labelled, steps.groups, config) if config.standardise else raw
    outcome = standardise_outcomes(steps.outcomes, steps.groups, steps.valid)
    rewards, shares = _fuse(attribution, outcome, steps.lengths, mask, config, alpha)
    return Credit(raw, attribution, outcome, rewards, shares, suffix_sum(rewards) * mask)


def raw_scores(steps: Steps, config: AdcaConfig) -> Tensor:
    """Return scores (T, K) before standardising."""
    scores = steps.scores.double()
    if config.scheme == "decouple":
        return config.base * scores
    # Allocation: a success is worth +1 and a failure -1, divided among the steps by weight. Labels that agree with the
    # outcome weigh `consistent_scale`, others less.
    success = (steps.grades > config.success_threshold)[:, None]
    disagreeing = torch.where(
        success, scores.new_tensor(config.pos_unconsistent_scale), abs(config.neg_unconsistent_scale)
    )
    weights = torch.where((scores > 0) == success, config.consistent_scale, disagreeing) * steps.mask
    total = weights.sum(1, keepdim=True)
    share = torch.where(total > SPREADLESS, weights / total.clamp_min(SPREADLESS), 0.0)
    return torch.where(success, share, -share)


def standardise_scores(raw: Tensor, labelled: Tensor, groups: Tensor, config: AdcaConfig) -> Tensor:
    """Return (raw - mean) / deviation (T, K) over the labelled steps of each group; 0 elsewhere (eq. 18)."""
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
    """Return (R - mean) / population deviation (T) over the valid trajectories of each group (eq. 19)."""
    values = torch.where(valid, outcomes.double(), 0.0)
    index, total = _group_totals(valid.double(), groups)
    total = total.clamp_min(1.0)
    centred = (values - (_sum(values, index, total) / total)[index]) * valid
    deviation = (_sum(centred**2, index, total) / total).sqrt()[index]
    return _divide(centred, deviation, _largest(values.abs(), index, total))


def suffix_sum(rewards: Tensor) -> Tensor:
    return rewards.flip(1).cumsum(1).flip(1)


def to_tokens(per_step: Tensor, row_trajectory: Tensor, step_ids: Tensor) -> Tensor:
    """Broadcast step values (T, K) to tokens (B, R) float32; 0 where `step_ids` is -1.

    `row_trajectory` (B) is the trajectory of each row, or -1. `step_ids` (B, R) number a trajectory's steps.
    """
    rows, width = step_ids.shape
    # Both indices may be -1: they then hit the last row or the first column, which stay 0.
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
    """Return the rewards (T, K), and the outcome's part of them."""
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
    # A smaller deviation is a rounding error: the group has no spread.
    spread = deviation > SPREADLESS * largest
    return torch.where(spread, centred / torch.where(spread, deviation, 1.0), 0.0)


def _group_totals(votes: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return each trajectory's group as a contiguous index (T), and the sum of votes per group (G)."""
    names, index = torch.unique(groups, return_inverse=True)
    return index, torch.zeros(len(names), dtype=torch.float64, device=votes.device).index_add_(0, index, votes)


def _sum(values: Tensor, index: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).index_add_(0, index, values)


def _largest(values: Tensor, index: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter_reduce_(0, index, values, "amax")[index]

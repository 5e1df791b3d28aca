"""Group-relative outcome advantage (GRPO, arXiv 2402.03300), one vote per trajectory.

(R - mean) / (unbiased deviation + 1e-6) over the valid trajectories of a group. verl computes the same per row;
counting trajectories keeps a rollout that became several rows from weighing more than its neighbours. Imports torch
alone.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Singleton = Literal["score", "neutral"]

EPSILON = 1e-6


def outcome_advantages(
    outcomes: Tensor, groups: Tensor, valid: Tensor, *, singleton: Singleton = "score", norm_by_std: bool = True
) -> Tensor:
    """Return the advantage of each trajectory (T), float64; 0 for what is not valid.

    Args:
        outcomes: (T) scores.
        groups: (T) integers, equal for the rollouts of one task.
        valid: (T) whether the trajectory counts.
        singleton: what the only valid rollout of a group gets: its score, as verl has it (mean 0, deviation 1), or
            nothing.
        norm_by_std: whether the difference to the mean is divided by the deviation.
    """
    values = torch.where(valid, outcomes.double(), 0.0)
    names, index = torch.unique(groups, return_inverse=True)
    zeros = torch.zeros(len(names), dtype=torch.float64, device=values.device)
    count = zeros.index_add(0, index, valid.double())
    mean = zeros.index_add(0, index, values) / count.clamp_min(1.0)
    centred = torch.where(valid, values - mean[index], 0.0)
    deviation = (zeros.index_add(0, index, centred**2) / (count - 1.0).clamp_min(1.0)).sqrt()
    advantages = centred / (deviation[index] + EPSILON) if norm_by_std else centred
    if singleton == "score":
        alone = (count[index] == 1) & valid
        advantages = torch.where(alone, values / (1.0 + EPSILON) if norm_by_std else values, advantages)
    return advantages

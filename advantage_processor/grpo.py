"""Group-relative advantages: GRPO of outcomes (arXiv 2402.03300), GiGPO of anchor states (arXiv 2505.10978)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import torch
from torch import Tensor

EPSILON = 1e-6


Singleton = Literal["score", "neutral"]


def outcome_advantages(
    outcomes: Tensor, groups: Tensor, valid: Tensor, *, singleton: Singleton = "score", norm_by_std: bool = True
) -> Tensor:
    """Return the GRPO advantage (R - mean) / (unbiased deviation + 1e-6) of each trajectory (T), 0 if not `valid`.

    `singleton`: the only valid rollout of a group gets its score (as in verl) or 0.
    """
    # One vote per trajectory. verl counts rows, so a rollout of several rows would weigh more there.
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


def anchor_ids(states: Sequence[Sequence[str]], groups: Sequence[Hashable]) -> Tensor:
    """Return (T, K) the anchor state of each step, -1 in padding.

    Args:
        states: per trajectory, the observation that each action answered. Equal texts are one state.
        groups: rollout groups; states of different groups are always different.
    """
    width = max((len(texts) for texts in states), default=0)
    ids = torch.full((len(states), width), -1, dtype=torch.long)
    known: dict[Hashable, dict[str, int]] = {}
    count = 0
    for row, (texts, group) in enumerate(zip(states, groups, strict=True)):
        anchors = known.setdefault(group, {})
        found = []
        for text in texts:
            if text not in anchors:
                anchors[text] = count
                count += 1
            found.append(anchors[text])
        ids[row, : len(found)] = torch.tensor(found, dtype=torch.long)
    return ids


def discounted_returns(rewards: Tensor, gamma: float) -> Tensor:
    """Return (T, K) the sums of gamma^(k - t) x reward k from each step t on; rewards are 0 in padding."""
    # Doubling spans takes log K passes, and no power gamma^-t that would overflow in long episodes.
    returns, span = rewards.double().clone(), 1
    while span < returns.shape[1]:
        returns[:, :-span] += gamma**span * returns[:, span:].clone()
        span *= 2
    return returns


def step_advantages(returns: Tensor, anchors: Tensor, valid: Tensor) -> Tensor:
    """Return (T, K) the standardised return of each step among those with its anchor state; 0 for a step alone."""
    # Rollouts that reach the same observation act differently from there on: their returns tell which was better.
    member = (anchors >= 0) & valid[:, None]
    index, values = anchors[member], returns[member].double()
    result = torch.zeros(returns.shape, dtype=torch.float64, device=returns.device)
    if not len(index):
        return result
    zeros = torch.zeros(int(index.max()) + 1, dtype=torch.float64, device=returns.device)
    count = zeros.index_add(0, index, torch.ones_like(values))
    centred = values - (zeros.index_add(0, index, values) / count.clamp_min(1.0))[index]
    deviation = (zeros.index_add(0, index, centred**2) / (count - 1.0).clamp_min(1.0)).sqrt()
    result[member] = centred / (deviation[index] + EPSILON)
    return result


def shared(anchors: Tensor, valid: Tensor) -> Tensor:
    """Return (T, K) whether another step has the same anchor state."""
    member = (anchors >= 0) & valid[:, None]
    index = anchors.clamp_min(0)
    count = torch.zeros(int(index.max()) + 1 if index.numel() else 0, dtype=torch.long, device=anchors.device)
    count.index_add_(0, anchors[member], torch.ones_like(anchors[member]))
    return member & (count[index] > 1) if count.numel() else member

"""Step credit without a judge: anchor-state groups (GiGPO, arXiv 2505.10978).

Rollouts of one task that come by the same observation did different things from there on: their discounted returns,
standardised over the steps that share the observation, say which action was the better one. A step's advantage is its
trajectory's outcome advantage plus omega times this. A step whose observation nobody shares, or whose sharers all fared
alike, gets the outcome advantage alone. Steps of what is not valid take no part.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from rapidfuzz import fuzz, process
from torch import Tensor

EPSILON = 1e-6


def anchor_ids(
    states: Sequence[Sequence[str]], groups: Sequence[Hashable], *, similarity: float | None = None
) -> Tensor:
    """Return (T, K) the anchor-state group of each step, -1 in padding.

    Args:
        states: for each trajectory the text that each of its actions answered.
        groups: the rollout group of each trajectory; states of different groups are never one.
        similarity: None takes equal texts for one state, 0..1 texts whose normalised edit similarity to the first of
            the state is at least that.
    """
    width = max((len(texts) for texts in states), default=0)
    ids = torch.full((len(states), width), -1, dtype=torch.long)
    known: dict[Hashable, dict[str, int]] = {}
    count = 0
    for row, (texts, group) in enumerate(zip(states, groups, strict=True)):
        anchors = known.setdefault(group, {})
        found = []
        for text in texts:
            name = text if similarity is None or text in anchors else _nearest(text, anchors, similarity)
            if name not in anchors:
                anchors[name] = count
                count += 1
            found.append(anchors[name])
        ids[row, : len(found)] = torch.tensor(found, dtype=torch.long)
    return ids


def _nearest(text: str, anchors: dict[str, int], similarity: float) -> str:
    match = process.extractOne(text, anchors.keys(), scorer=fuzz.ratio, score_cutoff=100.0 * similarity)
    return text if match is None else match[0]


def discounted_returns(rewards: Tensor, gamma: float) -> Tensor:
    """Return (T, K) the sum of gamma^(k - t) x reward k from each step t on; padding holds rewards of 0.

    Doubling spans, so that a long episode needs few passes and no gamma^-t.
    """
    returns, span = rewards.double().clone(), 1
    while span < returns.shape[1]:
        returns[:, :-span] += gamma**span * returns[:, span:].clone()
        span *= 2
    return returns


def step_advantages(returns: Tensor, anchors: Tensor, valid: Tensor, *, norm_by_std: bool = True) -> Tensor:
    """Return (T, K) the standardised return of each step among those that share its anchor state; 0 for a step alone.

    Args:
        returns: (T, K) discounted returns.
        anchors: (T, K) anchor-state groups, -1 in padding.
        valid: (T) whether the trajectory counts.
        norm_by_std: whether the difference to the mean is divided by the unbiased deviation (plus 1e-6).
    """
    member = (anchors >= 0) & valid[:, None]
    index, values = anchors[member], returns[member].double()
    result = torch.zeros(returns.shape, dtype=torch.float64, device=returns.device)
    if not len(index):
        return result
    zeros = torch.zeros(int(index.max()) + 1, dtype=torch.float64, device=returns.device)
    count = zeros.index_add(0, index, torch.ones_like(values))
    centred = values - (zeros.index_add(0, index, values) / count.clamp_min(1.0))[index]
    if norm_by_std:
        deviation = (zeros.index_add(0, index, centred**2) / (count - 1.0).clamp_min(1.0)).sqrt()
        centred = centred / (deviation[index] + EPSILON)
    result[member] = centred
    return result


def shared(anchors: Tensor, valid: Tensor) -> Tensor:
    """Return (T, K) whether another step shares this step's anchor state."""
    member = (anchors >= 0) & valid[:, None]
    index = anchors.clamp_min(0)
    count = torch.zeros(int(index.max()) + 1 if index.numel() else 0, dtype=torch.long, device=anchors.device)
    count.index_add_(0, anchors[member], torch.ones_like(anchors[member]))
    return member & (count[index] > 1) if count.numel() else member

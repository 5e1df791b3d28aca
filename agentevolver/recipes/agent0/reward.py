"""The proposer's reward: highest if the executor solves the task half of the time, uses tools, and the proposal is new.

    R = unc * (1 - 2 |p - 0.5|) + tool * min(calls, cap) - repetition * share

A malformed proposal gets `malformed`. With the default weights 0.5, 0.05, 4 and 1 the reward is min(p, 1 - p) + 0.05
min(calls, 4) - share. Only calls that were carried out count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentevolver.recipes.agent0.repetition import shares
from agentevolver.recipes.agent0.settings import RewardSettings


@dataclass(frozen=True, slots=True)
class RatedProposal:
    """A well-formed proposal: its question, the share p of episodes that solved it, and their mean number of calls."""

    question: str
    p: float
    calls: float


def frontier_reward(settings: RewardSettings, p: float, calls: float) -> float:
    """Return the reward of a proposal without repetition: uncertainty and tool calls, 0 to unc + tool * cap.

    Raises ValueError if p is no share or calls is no number from 0 on: an unmeasured proposal has no reward.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p = {p!r} is no share of episodes")
    if not (calls >= 0 and math.isfinite(calls)):
        raise ValueError(f"calls = {calls!r} is no number of tool calls")
    return settings.unc * (1 - 2 * abs(p - 0.5)) + settings.tool * min(calls, settings.cap)


def batch_rewards(settings: RewardSettings, batch: Sequence[RatedProposal | None]) -> list[float]:
    """Return the reward of each proposal of a batch, in order. None in the batch is a malformed proposal.

    A malformed proposal gets `settings.malformed`, counts in the batch's size, and joins no cluster. Raises ValueError
    as `frontier_reward` does.
    """
    parts = shares(["" if rated is None else rated.question for rated in batch])
    return [
        settings.malformed
        if rated is None
        else frontier_reward(settings, rated.p, rated.calls) - settings.repetition * part
        for rated, part in zip(batch, parts, strict=True)
    ]

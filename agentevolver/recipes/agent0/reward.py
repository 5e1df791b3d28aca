"""The proposer's reward: at the edge of what the executor can do, worth a tool, and unlike the rest of the batch.

    R = unc * (1 - 2 |p - 0.5|) + tool * min(calls, cap) - repetition * share

for a proposal, and `malformed` for what is none. With the weights of the configuration 0.5, 0.05, 4 and 1 that is
min(p, 1 - p) + 0.05 min(calls, 4) - share. Calls are those that the executor carried out, whatever anybody wrote.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentevolver.recipes.agent0.repetition import shares
from agentevolver.recipes.agent0.settings import RewardSettings


@dataclass(frozen=True, slots=True)
class Rated:
    """A well-formed proposal: its question, the share p of episodes that solved it, and their calls as one number."""

    question: str
    p: float
    calls: float


def frontier_reward(settings: RewardSettings, p: float, calls: float) -> float:
    """Return the reward of a proposal without the batch: uncertainty and tool calls, 0 to unc + tool * cap.

    Raises ValueError where p is not a share or calls not a number from 0 on: a proposal that could not be measured has
    no reward.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p = {p!r} is no share of episodes")
    if not (calls >= 0 and math.isfinite(calls)):
        raise ValueError(f"calls = {calls!r} is no number of tool calls")
    return settings.unc * (1 - 2 * abs(p - 0.5)) + settings.tool * min(calls, settings.cap)


def batch_rewards(settings: RewardSettings, batch: Sequence[Rated | None]) -> list[float]:
    """Return the reward of each proposal of a batch, in order. None in the batch is a malformed proposal.

    A malformed proposal gets `settings.malformed`, counts in the batch's size, and joins no cluster of repetitions.
    Raises ValueError as `frontier_reward` does.
    """
    parts = shares(["" if rated is None else rated.question for rated in batch])
    return [
        settings.malformed
        if rated is None
        else frontier_reward(settings, rated.p, rated.calls) - settings.repetition * part
        for rated, part in zip(batch, parts, strict=True)
    ]

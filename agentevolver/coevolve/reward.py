"""The proposer's reward: at the edge of what the executor can do, worth a tool, and unlike the rest of the batch.

    R = unc * (1 - 2 |p - 0.5|) + tool * min(calls, cap) - repetition * share

for a proposal, and `malformed` for what is none. With the weights of the configuration 0.5, 0.05, 4 and 1 that is
min(p, 1 - p) + 0.05 min(calls, 4) - share. Calls are those that the executor carried out, whatever anybody wrote.
"""

from __future__ import annotations

import math

from agentevolver.coevolve.types import Measurement
from agentevolver.coevolve.votes import Equality, same
from agentevolver.config.coevolve import RewardSettings


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


def proposal_reward(settings: RewardSettings, p: float, calls: float, share: float) -> float:
    """Return the whole reward of a proposal; `share` is that of the batch which its cluster holds, in 0..1.

    What is malformed gets `settings.malformed`, and nothing else is added or taken. Raises ValueError as
    `frontier_reward` does.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share = {share!r} is no share of the batch")
    return frontier_reward(settings, p, calls) - settings.repetition * share


def calls_of(settings: RewardSettings, measurement: Measurement, equal: Equality | None = None) -> float:
    """Return the calls of k episodes as one number, by `settings.agg`; 0 for `majority` where nobody answered."""
    if settings.agg == "mean":
        return measurement.mean_calls
    if settings.agg == "max":
        return float(max(measurement.calls, default=0))
    pairs = zip(measurement.answers, measurement.calls, strict=True)
    calls = [calls for answer, calls in pairs if same(measurement.vote, answer, equal)]
    return sum(calls) / len(calls) if calls else 0.0

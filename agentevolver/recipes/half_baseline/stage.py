"""Half baseline: in a half-guided group, guided rollouts are compared with guided ones, unguided with unguided.

GRPO's baseline is the mean of the whole group. If guidance helps, that mean lies above the unguided rollouts' scores:
they all get a negative advantage and the guided ones a positive one, whatever each did. This reward stage gives both
halves the mean advantage 0. It is not part of the paper.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from agentevolver.config.schema import Settings
from agentevolver.trainer.reward_stages import Rewards
from agentevolver.types import Reward, Trajectory


class HalfBaseline:
    """Subtracts from each score the mean of its half (guided or unguided) of the group. GRPO's advantages of groups
    that are all guided or all unguided do not change."""

    def __init__(self, settings: Settings) -> None:
        del settings

    def __call__(self, trajectories: Sequence[Trajectory]) -> Rewards:
        """Return the rewards. The metric `exp_manager/half_gap` is guided minus unguided mean, averaged over
        half-guided groups."""
        halves: dict[tuple[str, bool], list[float]] = defaultdict(list)
        scores = [one.score or 0.0 for one in trajectories]
        for one, score in zip(trajectories, scores, strict=True):
            halves[one.group_id, one.guided].append(score)
        means = {half: fmean(own) for half, own in halves.items()}
        gaps = [
            mean - means[group, False] for (group, guided), mean in means.items() if guided and (group, False) in means
        ]
        rewards = [
            Reward(score - means[one.group_id, one.guided]) for one, score in zip(trajectories, scores, strict=True)
        ]
        return Rewards(rewards, {"exp_manager/half_gap": fmean(gaps)} if gaps else {})

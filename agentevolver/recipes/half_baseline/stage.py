"""Half baseline: of a group that is guided in part, each half is compared with itself.

A group's mean is GRPO's baseline. Where half of a group is guided and guidance helps, that mean lies above what the
unguided rollouts reach: as a whole they get a negative advantage and the guided ones a positive one, whatever each did.
With this stage (`trainer.reward_stages: [{use: "agentevolver.trainer.half_baseline:HalfBaseline"}]`) both halves have
the mean advantage 0. It is not the paper's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from agentevolver.config.schema import Settings
from agentevolver.trainer.reward_stages import Rewards
from agentevolver.types import Reward, Trajectory


class HalfBaseline:
    """A reward stage: the score less the mean of the group's guided rollouts for a guided one, of its unguided ones for
    an unguided one. In a group that is guided as a whole or not at all GRPO's advantages are what they were."""

    def __init__(self, settings: Settings) -> None:
        del settings

    def __call__(self, trajectories: Sequence[Trajectory]) -> Rewards:
        """Return the scores; reports how far the halves are apart, `exp_manager/half_gap`, in the mean over the groups
        that have both."""
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

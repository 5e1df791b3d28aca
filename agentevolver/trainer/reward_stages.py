"""Reward stages: new scores (`Trajectory.reward`) for a step's graded rollouts, before advantages are computed.

A grader sees one rollout; a stage sees the whole step, without failed rollouts and validation.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from advantage_processor.settings import StageSettings
from agentevolver.trainer.batch import put_scores
from agentevolver.types import Reward, Trajectory
from agentevolver.utils.numbers import number

if TYPE_CHECKING:
    from transfer_queue import KVBatchMeta

    from agentevolver.config.schema import Settings


class RewardStageError(ValueError):
    """A stage broke its contract."""


@dataclass(frozen=True, slots=True)
class Rewards:
    """A stage's result: one reward for each rollout, in order, and metrics."""

    rewards: Sequence[Reward]
    metrics: dict[str, float] = field(default_factory=dict)


class RewardStage(Protocol):
    """One stage, constructed once with the run's settings and its options, and called in each training step."""

    def __call__(self, trajectories: Sequence[Trajectory]) -> Rewards:
        """Return the rewards of graded rollouts. `Trajectory.score` holds the result of earlier stages."""


class RewardStages:
    """The reward stages of a run. Raises ValueError if one cannot be found or made."""

    def __init__(self, stages: Sequence[StageSettings], settings: Settings) -> None:
        self._stages: list[tuple[str, RewardStage]] = [(one.use, one.make("reward", settings)) for one in stages]

    def __bool__(self) -> bool:
        return bool(self._stages)

    def apply(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Set `reward` on each graded rollout and return metrics. Raises RewardStageError, and errors of the stages."""
        graded = [one for one in trajectories if one.outcome is not None]
        if not self._stages or not graded:
            return {}
        began = time.perf_counter()
        metrics: dict[str, float] = {}
        for name, stage in self._stages:
            made = stage(graded)
            for one, reward in zip(graded, _checked(name, made.rewards, graded), strict=True):
                one.reward = reward
            metrics |= made.metrics
        metrics |= _means([one.reward for one in graded if one.reward is not None])
        return metrics | {"timing_s/reward_stages": time.perf_counter() - began}

    def score(
        self, batch: KVBatchMeta, withdrawn: Sequence[int], trajectories: Sequence[Trajectory]
    ) -> dict[str, float]:
        """Apply the stages and replace the batch's scores, except those of the rows `withdrawn` (indices)."""
        if not self._stages:
            return {}
        metrics = self.apply(trajectories)
        put_scores(batch, [i for i in range(len(batch.keys)) if i not in set(withdrawn)], trajectories)
        return metrics


def _means(rewards: Sequence[Reward]) -> dict[str, float]:
    parts: dict[str, list[float]] = defaultdict(list)
    for reward in rewards:
        for name, value in reward.parts.items():
            parts[name].append(value)
    means = {f"reward/{name}/mean": sum(values) / len(values) for name, values in sorted(parts.items())}
    return {"reward/score/mean": sum(reward.score for reward in rewards) / len(rewards), **means}


def _checked(name: str, rewards: Sequence[Reward], trajectories: Sequence[Trajectory]) -> list[Reward]:
    if len(rewards) != len(trajectories):
        raise RewardStageError(f"stage {name!r} returned {len(rewards)} rewards for {len(trajectories)} rollouts")
    checked = []
    for one, reward in zip(trajectories, rewards, strict=True):
        score = number(reward.score)
        parts = {key: part for key, value in reward.parts.items() if (part := number(value)) is not None}
        if score is None or parts.keys() != reward.parts.keys():
            raise RewardStageError(
                f"stage {name!r} returned {reward} for rollout {one.trajectory_id}: expected finite numbers"
            )
        checked.append(Reward(score, parts))
    return checked

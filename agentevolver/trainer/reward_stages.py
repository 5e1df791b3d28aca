"""Reward stages: new scores of a training step's rollouts once all of them are graded, before advantages are computed.

A grader sees one rollout. What depends on the others (a penalty for what the whole batch repeats) is a stage, which is
given all rollouts of the step that were graded and returns a score for each. Failed rollouts take no part, nor does
validation. The outcome stays what the grader said; what became of it stands beside it (`Trajectory.reward`).
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from advantage_processor.settings import StageSettings
from agentevolver.trainer.batch import put_scores
from agentevolver.types import Reward, Trajectory
from agentevolver.utils import recipes
from agentevolver.utils.names import load_named

if TYPE_CHECKING:
    from transfer_queue import KVBatchMeta

    from agentevolver.config.schema import Settings


class RewardStageError(ValueError):
    """A stage that cannot be found or made, or that broke its contract; the message names it."""


@dataclass(frozen=True, slots=True)
class Rewards:
    """What a stage returns: a reward for each rollout that it was given, in their order, and what else to report."""

    rewards: Sequence[Reward]
    metrics: dict[str, float] = field(default_factory=dict)


class RewardStage(Protocol):
    """One stage: made once with the settings of the run and the options that stand beside its name,
    called every training step."""

    def __call__(self, trajectories: Sequence[Trajectory]) -> Rewards:
        """Return the rewards of graded rollouts; `Trajectory.score` is what earlier stages made."""


class RewardStages:
    """The reward stages of a run.

    Args:
        stages: `trainer.reward_stages`.
        settings: of the run.

    Raises:
        RewardStageError: a stage that cannot be found or made.
    """

    def __init__(self, stages: Sequence[StageSettings], settings: Settings) -> None:
        self._stages: list[tuple[str, RewardStage]] = [(one.use, make_stage(one, settings)) for one in stages]

    def __bool__(self) -> bool:
        return bool(self._stages)

    def apply(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Set the `reward` of each rollout that was graded; returns the metrics: the mean of the scores and of each
        part. Raises RewardStageError where a stage breaks its contract, and what a stage raises."""
        graded = [one for one in trajectories if one.outcome is not None]
        if not self._stages or not graded:
            return {}
        began = time.perf_counter()
        metrics: dict[str, float] = {}
        for name, stage in self._stages:
            made = stage(graded)
            _check(name, made.rewards, graded)
            for one, reward in zip(graded, made.rewards, strict=True):
                one.reward = reward
            metrics |= made.metrics
        metrics |= _means([one.reward for one in graded if one.reward is not None])
        return metrics | {"timing_s/reward_stages": time.perf_counter() - began}

    def score(
        self, batch: KVBatchMeta, withdrawn: Sequence[int], trajectories: Sequence[Trajectory]
    ) -> dict[str, float]:
        """Have the stages make new scores, and put them in the place of the graders'; `withdrawn` are places of rows
        that keep theirs."""
        if not self._stages:
            return {}
        metrics = self.apply(trajectories)
        put_scores(batch, [i for i in range(len(batch.keys)) if i not in set(withdrawn)], trajectories)
        return metrics


def make_stage(settings: StageSettings, run: Settings) -> RewardStage:
    """Return the stage that an entry of `trainer.reward_stages` names; raises RewardStageError."""
    try:
        make: Any = load_named(settings.use, recipes.stages("reward"))
        stage: RewardStage = make(run, **settings.options)
    except (TypeError, ValueError) as error:
        raise RewardStageError(f"stage {settings.use!r} with the options {settings.options}: {error}") from error
    return stage


def _means(rewards: Sequence[Reward]) -> dict[str, float]:
    """Return the mean score, and of each part its mean over the rollouts that have it."""
    parts: dict[str, list[float]] = defaultdict(list)
    for reward in rewards:
        for name, value in reward.parts.items():
            parts[name].append(value)
    means = {f"reward/{name}/mean": sum(values) / len(values) for name, values in sorted(parts.items())}
    return {"reward/score/mean": sum(reward.score for reward in rewards) / len(rewards), **means}


def _check(name: str, rewards: Sequence[Reward], trajectories: Sequence[Trajectory]) -> None:
    if len(rewards) != len(trajectories):
        raise RewardStageError(f"stage {name!r} returned {len(rewards)} rewards for {len(trajectories)} rollouts")
    for one, reward in zip(trajectories, rewards, strict=True):
        numbers = (reward.score, *reward.parts.values())
        if not all(isinstance(x, int | float) and math.isfinite(x) for x in numbers):
            raise RewardStageError(
                f"stage {name!r} returned {reward} for rollout {one.trajectory_id}: expected finite numbers"
            )

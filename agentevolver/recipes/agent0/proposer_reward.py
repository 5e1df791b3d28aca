"""The proposer's reward: the measurements of `FrontierGrader`, less a penalty for repetition within the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from agentevolver.config.schema import Settings
from agentevolver.recipes.agent0.reward import RatedProposal, batch_rewards, frontier_reward
from agentevolver.recipes.agent0.settings import RewardSettings, settings_of
from agentevolver.trainer.reward_stages import Rewards, RewardStageError
from agentevolver.types import Reward, Trajectory


class ProposerReward:
    def __init__(self, settings: Settings) -> None:
        self._settings: RewardSettings = settings_of(settings).reward

    def __call__(self, trajectories: Sequence[Trajectory]) -> Rewards:
        found = [_facts(one) for one in trajectories]
        batch = [_rated(one, facts) for one, facts in zip(trajectories, found, strict=True)]
        scores = batch_rewards(self._settings, batch)
        rewards = [Reward(score, self._parts(rated, score)) for rated, score in zip(batch, scores, strict=True)]
        return Rewards(rewards, _metrics(found, batch))

    def _parts(self, rated: RatedProposal | None, score: float) -> dict[str, float]:
        parts = {"uncertainty": 0.0, "tool": 0.0, "repetition": 0.0, "malformed": 0.0}
        if rated is None:
            return {**parts, "malformed": score}
        frontier = frontier_reward(self._settings, rated.p, rated.calls)
        uncertainty = frontier_reward(self._settings, rated.p, 0.0)
        return {
            **parts,
            "uncertainty": uncertainty,
            "tool": frontier - uncertainty,
            "repetition": score - frontier,
        }


def _facts(trajectory: Trajectory) -> Mapping[str, Any]:
    facts = trajectory.outcome.facts if trajectory.outcome is not None else None
    if facts is None or "refused" not in facts or "question" not in facts:
        raise RewardStageError(
            f"rollout {trajectory.trajectory_id} was not graded as a proposal (task {trajectory.task.task_id}, grader "
            f"{trajectory.task.evaluator}): set task_manager.grader.original_grader to "
            "agentevolver.recipes.agent0.frontier:FrontierGrader"
        )
    return facts


def _rated(trajectory: Trajectory, facts: Mapping[str, Any]) -> RatedProposal | None:
    if facts["refused"]:
        return None
    p, calls = facts.get("p"), facts.get("calls")
    if not isinstance(p, int | float) or not isinstance(calls, int | float):
        raise RewardStageError(
            f"rollout {trajectory.trajectory_id}: the proposal {facts['question']!r} has p = {p!r} and calls = "
            f"{calls!r}: what was not measured has no reward"
        )
    return RatedProposal(str(facts["question"]), float(p), float(calls))


def _metrics(found: Sequence[Mapping[str, Any]], batch: Sequence[RatedProposal | None]) -> dict[str, float]:
    rated = [one for one in batch if one is not None]
    words = Counter(str(facts["refused"]).partition(":")[0].strip() for facts in found if facts["refused"])
    metrics = {"proposer/well_formed": len(rated) / len(batch)}
    metrics |= {f"proposer/refused/{word}": count / len(batch) for word, count in sorted(words.items())}
    if rated:
        metrics |= {
            "proposer/p/mean": sum(one.p for one in rated) / len(rated),
            "proposer/calls/mean": sum(one.calls for one in rated) / len(rated),
            "proposer/distinct": len({one.question for one in rated}) / len(rated),
        }
    return metrics

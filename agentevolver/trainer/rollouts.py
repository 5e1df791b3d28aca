"""What a step's rollouts say: counts, times, and whether too many of them failed. Pure functions over trajectory
records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentevolver.types import StopReason
from context_manager.samples import DROPPED

Record = Mapping[str, Any]


class RolloutsFailed(RuntimeError):
    """Too many rollouts failed for too long; the message says which way and how many."""


def rollout_metrics(trajectories: Sequence[Record], gen_s: float) -> dict[str, float]:
    """Return the metrics of a step's trajectories (`Trajectory.to_dict()`), failed ones counted apart.

    `gen_s` is the wall time of the rollout phase in seconds.
    """
    graded = [t for t in trajectories if t["outcome"] is not None]
    steps = [step for t in graded for step in t["steps"]]
    reasons = Counter(str(t["stop_reason"]) for t in trajectories)
    tokens = sum(step["action_tokens"] for step in steps)
    metrics = {
        "training/num_not_none_traj": float(len(graded)),
        "training/num_term_traj": float(reasons[StopReason.FINISHED]),
        "rollout/trajectories": float(len(trajectories)),
        "rollout/failed": float(len(trajectories) - len(graded)),
        "rollout/retried": float(sum(t["attempts"] > 1 for t in trajectories)),
        "rollout/action_tokens": float(tokens),
        "rollout/tokens_per_s": tokens / gen_s if gen_s > 0 else 0.0,
        **{f"rollout/stop_reason/{reason.value}": float(reasons[reason]) for reason in StopReason},
    }
    dropped = Counter({name: 0 for name in DROPPED})
    for trajectory in graded:
        dropped.update(trajectory["dropped_samples"])
    metrics |= {f"rollout/dropped_samples/{name}": float(count) for name, count in dropped.items()}
    if graded:
        metrics |= {
            "rollout/reward/mean": float(np.mean([t["outcome"]["score"] for t in graded])),
            "rollout/success": float(np.mean([t["outcome"]["success"] for t in graded])),
            "rollout/steps/mean": float(np.mean([len(t["steps"]) for t in graded])),
            "rollout/truncated_replies": float(np.mean([step["truncated"] for step in steps])) if steps else 0.0,
            "rollout/groups_without_signal": _share_without_signal(graded),
            "timing_s/rollout/generate": float(np.mean([sum(s["generate_s"] for s in t["steps"]) for t in graded])),
            "timing_s/rollout/env": float(np.mean([sum(s["env_s"] for s in t["steps"]) for t in graded])),
            "timing_s/rollout/slowest": float(max(t["seconds"] for t in graded)),
        }
    return metrics


def _share_without_signal(graded: Sequence[Record]) -> float:
    """Return the share of groups whose rollouts all have one score: they have no advantage, hence no gradient."""
    groups: dict[str, set[float]] = defaultdict(set)
    for trajectory in graded:
        groups[trajectory["group_id"]].add(trajectory["outcome"]["score"])
    return float(np.mean([len(scores) == 1 for scores in groups.values()]))


def lonely_groups(trajectories: Sequence[Record]) -> set[str]:
    """Return the groups of which a single rollout is left: with nothing to compare it to it says nothing about its
    actions."""
    left = Counter(t["group_id"] for t in trajectories if t["outcome"] is not None)
    asked = Counter(t["group_id"] for t in trajectories)
    return {group for group, count in left.items() if count == 1 and asked[group] > 1}


class FailureGuard:
    """Stops a run whose rollouts keep failing.

    A step fails when more than `max_share` of its rollouts failed; `max_steps` such steps in a row, or one in which
    every rollout failed, end the run.
    """

    def __init__(self, max_share: float, max_steps: int) -> None:
        self._max_share = max_share
        self._max_steps = max_steps
        self.in_a_row = 0

    def check(self, trajectories: Sequence[Record]) -> None:
        """Take a step's trajectories; raises RolloutsFailed when the run should end."""
        failed = [t for t in trajectories if t["outcome"] is None]
        share = len(failed) / len(trajectories) if trajectories else 1.0
        self.in_a_row = self.in_a_row + 1 if share > self._max_share else 0
        if not trajectories or share == 1.0 or self.in_a_row >= self._max_steps:
            reasons = ", ".join(
                f"{count} x {reason}" for reason, count in Counter(str(t["stop_reason"]) for t in failed).most_common()
            )
            last = failed[-1]["error"] if failed else "no rollout came back"
            raise RolloutsFailed(
                f"{len(failed)} of {len(trajectories)} rollouts of the step failed ({reasons}); the last one: {last}"
            )

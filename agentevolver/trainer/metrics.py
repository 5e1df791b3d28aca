"""Metrics of a step's rollouts: pure functions over trajectories."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from agentevolver.rollout.tool_calls import PROBLEMS
from agentevolver.trainer.gateway import gateway_metrics
from agentevolver.trainer.monitor.measured import Measured
from agentevolver.types import Step, StopReason, Trajectory
from context_manager.samples import DROPPED
from task_manager.graders.registry import agreement_metrics


def rollout_metrics(trajectories: Sequence[Trajectory], gen_s: float) -> dict[str, float]:
    """Return the metrics of a step's trajectories. `gen_s` is the wall time of the rollout phase."""
    graded = [t for t in trajectories if t.outcome is not None]
    steps = [step for t in graded for step in t.steps]
    reasons = Counter(t.stop_reason for t in trajectories)
    tokens = sum(step.action_tokens for step in steps)
    metrics = {
        "training/num_not_none_traj": float(len(graded)),
        "training/num_term_traj": float(reasons[StopReason.FINISHED]),
        "rollout/trajectories": float(len(trajectories)),
        "rollout/failed": float(len(trajectories) - len(graded)),
        "rollout/retried": float(sum(t.attempts > 1 for t in trajectories)),
        "rollout/action_tokens": float(tokens),
        "rollout/tokens_per_s": tokens / gen_s if gen_s > 0 else 0.0,
        **{f"rollout/stop_reason/{reason.value}": float(reasons[reason]) for reason in StopReason},
    }
    measured = Measured.of(trajectories)
    outcomes = [t.outcome for t in graded if t.outcome is not None]
    metrics |= measured.metrics("rollout/")
    dropped = Counter({name: 0 for name in DROPPED})
    for trajectory in graded:
        dropped.update(trajectory.dropped_samples)
    metrics |= {f"rollout/dropped_samples/{name}": float(count) for name, count in dropped.items()}
    metrics |= tool_metrics(steps)
    metrics |= gateway_metrics(trajectories)
    if steps:
        metrics["rollout/truncated_replies"] = float(np.mean([step.truncated for step in steps]))
    if graded and not measured.unmeasured:
        # Where no rollout acted, the scores say nothing about the policy.
        metrics |= {
            "rollout/reward/mean": float(np.mean([outcome.score for outcome in outcomes])),
            "rollout/success": float(np.mean([outcome.success for outcome in outcomes])),
        }
    if graded:
        metrics |= {
            "rollout/steps/mean": float(np.mean([len(t.steps) for t in graded])),
            "rollout/groups_without_signal": share_without_signal(graded),
            "timing_s/rollout/generate": float(np.mean([sum(s.generate_s for s in t.steps) for t in graded])),
            "timing_s/rollout/env": float(np.mean([sum(s.env_s for s in t.steps) for t in graded])),
            "timing_s/rollout/slowest": float(max(t.seconds for t in graded)),
        }
    return metrics


# Metrics of `rollout_metrics` that are also reported for each environment.
APART = (
    *("trajectories", "failed", "never_began", "never_acted"),
    *("reward/mean", "success", "steps/mean", "groups_without_signal"),
)


def metrics_apart(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return some rollout metrics for each environment: `rollout/success/NAME`."""
    by_environment: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_environment[trajectory.task.env_type].append(trajectory)
    return {
        f"{metric}/{env_type}": value
        for env_type, own in sorted(by_environment.items())
        for metric, value in rollout_metrics(own, 0.0).items()
        if metric.removeprefix("rollout/") in APART
    }


def tool_metrics(steps: Iterable[Step]) -> dict[str, float]:
    """Return native tool calls a step and, if any was made, the share of calls with each problem."""
    acted = [step for step in steps if step.calls is not None]
    if not acted:
        return {}
    tried = sum(step.calls or 0 for step in acted)
    problems = Counter(kind for step in acted for kind in step.problems)
    return {
        "rollout/tool_calls_per_step": tried / len(acted),
        **{f"rollout/tool_problems/{kind}": problems[kind] / tried for kind in PROBLEMS if tried},
    }


def share_without_signal(trajectories: Sequence[Trajectory]) -> float:
    """Return the share of groups whose graded rollouts all have one score, so that no advantage remains.

    At least one rollout must be graded.
    """
    groups: dict[str, set[float]] = defaultdict(set)
    for trajectory in trajectories:
        if trajectory.score is not None:
            groups[trajectory.group_id].add(trajectory.score)
    return float(np.mean([len(scores) == 1 for scores in groups.values()]))


def rollout_flags(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return metrics of guided and unguided rollouts, without failed ones."""
    unanswered = [one for one in trajectories if one.guidance is not None and one.guidance.wanted and not one.guided]
    metrics = {"exp_manager/unanswered": float(len(unanswered))}
    for name, wanted in (("guided", True), ("unguided", False)):
        graded = [one for one in trajectories if one.outcome is not None and one.guided is wanted]
        outcomes = [one.outcome for one in graded if one.outcome is not None]
        metrics[f"exp_manager/{name}/rollouts"] = float(len(outcomes))
        if Measured.of(graded).acted:
            metrics[f"exp_manager/{name}/success"] = sum(outcome.success for outcome in outcomes) / len(outcomes)
    return metrics


def task_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the share of synthetic tasks among graded rollouts, success by kind, and the agreement of two graders."""
    graded = [one for one in trajectories if one.outcome is not None]
    if not graded:
        return {}
    kinds = {
        "synthetic": [one for one in graded if one.task.open_query],
        "original": [one for one in graded if not one.task.open_query],
    }
    metrics = {"task/synthetic_share": len(kinds["synthetic"]) / len(graded)}
    for kind, group in kinds.items():
        if Measured.of(group).acted:
            metrics[f"task/success/{kind}"] = float(
                np.mean([one.outcome.success for one in group if one.outcome is not None])
            )
    return metrics | agreement_metrics(graded)

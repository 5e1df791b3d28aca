"""Age (steps between a group's start and its training) and staleness (updates since sampling) of rollouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from statistics import fmean

from agentevolver.types import Trajectory

# Higher ages share one metric.
LAST_AGE = 4


def age_metrics(trajectories: Sequence[Trajectory], step: int) -> dict[str, float]:
    """Return ages and staleness of a step's rollouts, and success by age. `step` counts from 1."""
    ages = [step - one.began_step for one in trajectories if one.began_step is not None]
    stale = [step - 1 - one.min_version for one in trajectories if one.min_version is not None]
    spans = [
        one.max_version - one.min_version
        for one in trajectories
        if one.min_version is not None and one.max_version is not None
    ]
    metrics: dict[str, float] = {}
    for name, values in (("age", ages), ("staleness", stale)):
        if values:
            metrics |= {f"rollout/{name}/mean": fmean(values), f"rollout/{name}/max": float(max(values))}
    if spans:
        metrics["rollout/spans_updates"] = sum(span > 0 for span in spans) / len(spans)
    # Short episodes are trained on early. Success that changes with age shows that this selects other tasks.
    by_age: dict[int, list[Trajectory]] = defaultdict(list)
    for one in trajectories:
        if one.began_step is not None:
            by_age[min(step - one.began_step, LAST_AGE)].append(one)
    for age, found in sorted(by_age.items()):
        name = f"rollout/age_{age}{'_or_more' if age == LAST_AGE else ''}"
        metrics[f"{name}/share"] = len(found) / len(trajectories)
        graded = [one.outcome.success for one in found if one.outcome is not None]
        if graded:
            metrics[f"{name}/success"] = sum(graded) / len(graded)
    return metrics


Selected = tuple[list[str], dict[str, dict[str, object]], dict[str, int]]


def oldest_first(select: Callable[..., Selected], begun: Callable[[str], Mapping[str, int]]) -> Callable[..., Selected]:
    """Make a replay buffer choose groups by the step they began in, then by group id, instead of by finishing order."""

    def inner(partition_id: str, sampleable: Set[str], batch_size: int) -> Selected:
        steps = dict(begun(partition_id))
        chosen = sorted(sampleable, key=lambda group: (steps.get(group, 0), group))[:batch_size]
        return select(partition_id, set(chosen), batch_size)

    return inner

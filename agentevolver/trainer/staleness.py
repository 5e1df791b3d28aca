"""Staleness of a step's rollouts, where they go on over updates, and what that does to which tasks are trained on.

A group is begun for a step and trained on in that one or a later one: its age, in steps. A token is sampled by weights
of some version; its staleness is the number of updates between them and the ones that it is trained with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from statistics import fmean

from agentevolver.types import Trajectory

# Metrics of ages beyond share a name.
LAST_AGE = 4


def age_metrics(trajectories: Sequence[Trajectory], step: int) -> dict[str, float]:
    """Return the ages of a step's rollouts, and success by age: tasks that end early are trained on early, and another
    success at a higher age says that they are others.

    Args:
        trajectories: the step's.
        step: the training step, from 1.
    """
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
    """Return a replay buffer's choice of groups that goes by the step that they were begun for, and by their place in
    it: among those that are finished, which one was so first decides nothing.

    Args:
        select: verl's, which leaves the order within a step to a set.
        begun: of a partition, the step of each group.
    """

    def inner(partition_id: str, sampleable: Set[str], batch_size: int) -> Selected:
        steps = dict(begun(partition_id))
        chosen = sorted(sampleable, key=lambda group: (steps.get(group, 0), group))[:batch_size]
        return select(partition_id, set(chosen), batch_size)

    return inner

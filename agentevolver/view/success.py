"""Success of a run's rollouts by kind of task: family, level, environment, origin, or the task itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from agentevolver.view.experiment import BadPageRequest, NotThere
from agentevolver.view.trajectories import Summary, Trajectories

KINDS: dict[str, Callable[[Summary], str]] = {
    "family": lambda summary: summary["family"],
    "level": lambda summary: summary["level"],
    "environment": lambda summary: summary["environment"],
    "origin": lambda summary: "synthetic" if summary["synthetic"] else "original",
    "task": lambda summary: summary["task_id"],
}


def success_by(trajectories: Trajectories, by: str, last: int) -> dict[str, Any]:
    """Return `{steps, groups}`: the last `last` steps, and `{name, rollouts, acted, tasks, success}` for each kind.

    `success` is the share of graded rollouts, None if none of them acted. Raises BadPageRequest if `by` is unknown.
    """
    if by not in KINDS:
        raise BadPageRequest(f"by: {by!r} is not known, write {', '.join(KINDS)}")
    steps = list(trajectories.steps())[-last:]
    groups: defaultdict[str, list[Summary]] = defaultdict(list)
    for step in steps:
        try:
            summaries = trajectories.step(step)
        except NotThere:
            continue
        for summary in summaries:
            if summary["success"] is not None:
                groups[KINDS[by](summary)].append(summary)
    return {
        "steps": steps,
        "groups": [
            {
                "name": name,
                "rollouts": len(own),
                "acted": sum(summary["acted"] for summary in own),
                "tasks": len({summary["task_id"] for summary in own}),
                "success": sum(summary["success"] for summary in own) / len(own)
                if any(summary["acted"] for summary in own)
                else None,
            }
            for name, own in sorted(groups.items())
        ],
    }

"""Failed rollouts: groups with a single rollout left, and when failures end a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentevolver.types import Trajectory


class RolloutsFailed(RuntimeError):
    """Too many rollouts failed; the message counts them by reason."""


def nothing_left(trajectories: Sequence[Trajectory]) -> RolloutsFailed:
    """Return the error for a step without a row to train on, although not all rollouts failed."""
    failed = [one for one in trajectories if one.outcome is None]
    reasons = ", ".join(f"{count} x {reason}" for reason, count in Counter(t.stop_reason.value for t in failed).items())
    last = next((one.error for one in reversed(failed) if one.error), "none of them failed")
    return RolloutsFailed(
        f"the step has no row to train on: {len(failed)} of {len(trajectories)} rollouts failed "
        f"({reasons or 'no sample fits the limits'}), and a group's only remaining rollout has no advantage; "
        f"the last failure: {last}"
    )


def lonely_groups(trajectories: Sequence[Trajectory]) -> set[str]:
    """Return the groups in which a single rollout is graded, although several were started."""
    # A single rollout has no baseline in its group, so its advantage says nothing about its actions.
    left = Counter(t.group_id for t in trajectories if t.outcome is not None)
    asked = Counter(t.group_id for t in trajectories)
    return {group for group, count in left.items() if count == 1 and asked[group] > 1}


class FailureGuard:
    """Stops a run whose rollouts keep failing.

    A step fails if the failed share of any environment exceeds `max_share`. `max_steps` failed steps in a row end the
    run, and so does a step in which every rollout failed.
    """

    def __init__(self, max_share: float, max_steps: int) -> None:
        self._max_share = max_share
        self._max_steps = max_steps
        self.in_a_row = 0

    def check(self, trajectories: Sequence[Trajectory]) -> None:
        """Count the failures of a step. Raises RolloutsFailed if the run should end."""
        asked = Counter(t.task.env_type for t in trajectories)
        failed = [t for t in trajectories if t.outcome is None]
        lost = Counter(t.task.env_type for t in failed)
        worst = max(asked, key=lambda name: lost[name] / asked[name], default="")
        share = lost[worst] / asked[worst] if trajectories else 1.0
        self.in_a_row = self.in_a_row + 1 if share > self._max_share else 0
        if len(failed) == len(trajectories) or self.in_a_row >= self._max_steps:
            reasons = ", ".join(
                f"{count} x {reason}" for reason, count in Counter(t.stop_reason.value for t in failed).most_common()
            )
            last = failed[-1].error if failed else "no rollout came back"
            where = f", {lost[worst]} of {asked[worst]} in {worst}" if len(asked) > 1 else ""
            raise RolloutsFailed(
                f"{len(failed)} of {len(trajectories)} rollouts of the step failed ({reasons}{where}); the last one: "
                f"{last}"
            )

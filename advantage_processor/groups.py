"""Outcomes of rollout groups, for skip rules that need all of them before a rollout is labelled."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass, field

# As in `grpo`, whose formula this module repeats without importing torch.
EPSILON = 1e-6


@dataclass(slots=True)
class Group:
    step: int
    outcomes: dict[int, float | None] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class GroupOutcomes:
    """Collects outcomes by rollout group, on one event loop. Every rollout must report once."""

    def __init__(self, size: int, steps_kept: int = 1) -> None:
        self._size = size
        self._steps_kept = steps_kept
        self._groups: dict[str, Group] = {}
        self._step = 0

    def report(self, group_id: str, rollout_id: int, outcome: float | None, *, step: int) -> Group:
        """Record a rollout's outcome (None if it failed) and return its group, for `advantage`."""
        if step > self._step:
            self._step = step
            # A cancelled rollout never reports, so its group would be kept to the end of the run.
            self._groups = {key: group for key, group in self._groups.items() if group.step > step - self._steps_kept}
        group = self._groups.setdefault(group_id, Group(step))
        group.outcomes[rollout_id] = outcome
        if len(group.outcomes) >= self._size:
            del self._groups[group_id]
            group.complete.set()
        return group

    async def advantage(self, group: Group, rollout_id: int, timeout_s: float) -> float | None:
        """Return the group-relative advantage of a rollout that did not fail, or None if others report too late."""
        try:
            await asyncio.wait_for(group.complete.wait(), timeout_s)
        except TimeoutError:
            return None
        own = group.outcomes[rollout_id]
        assert own is not None, f"rollout {rollout_id} reported that it failed, it has no advantage"
        return group_advantage(own, [outcome for outcome in group.outcomes.values() if outcome is not None], self._size)


def group_advantage(outcome: float, outcomes: list[float], size: int) -> float:
    """(R - mean) / (unbiased deviation + 1e-6); 0 without another outcome, R itself if `size` is 1."""
    # All others failed: nothing to compare with. Groups of one train on the score itself.
    if len(outcomes) < 2:
        return outcome if size == 1 else 0.0
    return (outcome - statistics.fmean(outcomes)) / (statistics.stdev(outcomes) + EPSILON)

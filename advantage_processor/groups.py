"""The outcomes of a rollout group, for a rule that needs all of them before one of its rollouts is labelled."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass, field

# As in `grpo`, which this mirrors without torch.
EPSILON = 1e-6


@dataclass(slots=True)
class Group:
    """Outcomes of a group's rollouts so far, and whether all have."""

    step: int
    outcomes: dict[int, float | None] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class GroupOutcomes:
    """Meeting point of a group's rollouts; all of them run on one event loop,
    and each reports once, failed ones included.

    Args:
        size: rollouts of a group. A group is forgotten as soon as all of them have reported, and `steps_kept` training
            steps after its own at the latest: what never reports (a rollout that was cancelled) would be waited for to
            the end of the run.
        steps_kept: for how many steps a group may be rolled out.
    """

    def __init__(self, size: int, steps_kept: int = 1) -> None:
        self._size = size
        self._steps_kept = steps_kept
        self._groups: dict[str, Group] = {}
        self._step = 0

    def report(self, group_id: str, rollout_id: int, outcome: float | None, *, step: int) -> Group:
        """Say how a rollout of a training step ended: None when it failed and takes no part.
        The returned group is for `advantage`."""
        if step > self._step:
            self._step = step
            self._groups = {key: group for key, group in self._groups.items() if group.step > step - self._steps_kept}
        group = self._groups.setdefault(group_id, Group(step))
        group.outcomes[rollout_id] = outcome
        if len(group.outcomes) >= self._size:
            del self._groups[group_id]
            group.complete.set()
        return group

    async def advantage(self, group: Group, rollout_id: int, timeout_s: float) -> float | None:
        """Return the group-relative advantage of a rollout that did not fail;
        None when its group was not complete in time."""
        try:
            await asyncio.wait_for(group.complete.wait(), timeout_s)
        except TimeoutError:
            return None
        own = group.outcomes[rollout_id]
        assert own is not None, f"rollout {rollout_id} reported that it failed, it has no advantage"
        return group_advantage(own, [outcome for outcome in group.outcomes.values() if outcome is not None], self._size)


def group_advantage(outcome: float, outcomes: list[float], size: int) -> float:
    """Return (R - mean) / (unbiased deviation + 1e-6) of one outcome among those of its group.

    The only rollout left of a group has none to compare itself to: its advantage is 0, or its score where groups are of
    one.
    """
    if len(outcomes) < 2:
        return outcome if size == 1 else 0.0
    return (outcome - statistics.fmean(outcomes)) / (statistics.stdev(outcomes) + EPSILON)

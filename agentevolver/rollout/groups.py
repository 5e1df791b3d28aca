"""Names of rollout groups, from which follows what their rollouts sample, and the order of rows.

verl draws a name for each prompt, and gives rows in the order in which they arrived. Here a name says the step and the
task's place in it, and a hash of what the group is makes it the run's own; rows are sorted by it. So the same prompts
in the same step of the same run have the same names, and what is computed over rows (mini-batches, sums) does not
depend on which rollout was quicker.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentevolver.types import RowKey
from agentevolver.utils import seeds


def name(seed: int, kind: str, step: int, place: int, task_id: str) -> str:
    """Return the name of a group: `<step>-<place>-<hash>`.

    Args:
        seed: the run's.
        kind: what the rollouts are for (`train`, `validation`, ...).
        step: the training step.
        place: of the task among those of the step, from 0.
        task_id: of the task.
    """
    return f"{step:06d}-{place:05d}-{seeds.digest(seed, kind, step, place, task_id)[:5].hex()}"


def place(group_id: str) -> int:
    """Return a group's place in its step."""
    return int(group_id.split("-")[1])


def order(keys: Sequence[str]) -> list[int]:
    """Return the places of rows (`<group>_<rollout>_<row>`) in the order of group, rollout and row."""
    return sorted(range(len(keys)), key=lambda place: RowKey.of(keys[place]))

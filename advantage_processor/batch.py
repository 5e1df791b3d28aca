"""A training step as stages see it: rows of tokens, and the trajectories they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentevolver.types import NOBODY_ASKED, Attribution, RowKey, Trajectory


@dataclass(frozen=True, slots=True)
class CreditBatch:
    """T trajectories of at most K steps, and their B rows of R tokens. Credit is assigned per trajectory and step."""

    step: int  # from 1
    trajectories: Sequence[Trajectory]
    attributions: Sequence[Attribution]
    groups: Tensor  # (T)
    outcomes: Tensor  # (T) scores, which reward stages may have changed
    grades: Tensor  # (T) scores of the graders, which decide success
    valid: Tensor  # (T) graded, and at least one row is trained on; others are left out of all statistics
    lengths: Tensor  # (T) number of steps
    row_trajectory: Tensor  # (B) each row's trajectory
    step_ids: Tensor  # (B, R) the step of each sampled token, counted through the trajectory; -1 elsewhere

    @property
    def width(self) -> int:
        return max([1, *map(int, self.lengths)])  # K

    @property
    def mask(self) -> Tensor:
        """(T, K): True for the steps of valid trajectories."""
        return (torch.arange(self.width) < self.lengths[:, None]) & self.valid[:, None]

    def table(self, values: Sequence[Sequence[float]]) -> Tensor:
        """Return (T, K) float64 from one number per step; a trajectory's sequence may be empty."""
        counts = np.fromiter((len(row) for row in values), dtype=np.int64, count=len(values))
        flat = np.fromiter((value for row in values for value in row), dtype=np.float64, count=int(counts.sum()))
        table = np.zeros((len(values), self.width))
        table[np.arange(self.width) < counts[:, None]] = flat
        return torch.from_numpy(table)


def make_batch(step: int, trajectories: Sequence[Trajectory], keys: Sequence[str], step_ids: Tensor) -> CreditBatch:
    """Build the batch of a training step.

    Args:
        keys: (B) `{uid}_{session}_{index}`: the row's trajectory id and its index within the trajectory.
        step_ids: (B, R), -1 in padding.

    Raises:
        ValueError: a row belongs to no trajectory, or has a token of a step that its trajectory lacks.
    """
    number = {trajectory.trajectory_id: i for i, trajectory in enumerate(trajectories)}
    rows = torch.zeros(len(keys), dtype=torch.long)
    for i, key in enumerate(keys):
        name = RowKey.of(key).trajectory_id
        if name not in number:
            raise ValueError(
                f"row {key} belongs to no trajectory of step {step}: there is no {name!r} among {len(number)} records"
            )
        rows[i] = number[name]
    lengths = torch.tensor([len(trajectory.steps) for trajectory in trajectories], dtype=torch.long)
    _check_steps(keys, rows, lengths, step_ids)
    graded = torch.tensor([trajectory.outcome is not None for trajectory in trajectories], dtype=torch.bool)
    trained = torch.zeros(len(trajectories), dtype=torch.bool)
    trained[rows] = True
    outcomes = [0.0 if (score := one.score) is None else float(score) for one in trajectories]
    grades = [0.0 if one.outcome is None else float(one.outcome.score) for one in trajectories]
    groups = {name: i for i, name in enumerate(dict.fromkeys(trajectory.group_id for trajectory in trajectories))}
    return CreditBatch(
        step=step,
        trajectories=trajectories,
        attributions=[trajectory.attribution or NOBODY_ASKED for trajectory in trajectories],
        groups=torch.tensor([groups[trajectory.group_id] for trajectory in trajectories], dtype=torch.long),
        outcomes=torch.tensor(outcomes, dtype=torch.float64),
        grades=torch.tensor(grades, dtype=torch.float64),
        valid=graded & trained & (lengths > 0),
        lengths=lengths,
        row_trajectory=rows,
        step_ids=step_ids,
    )


def pad_step_ids(rows: Sequence[Sequence[int]], width: int) -> Tensor:
    """Pad rows of different lengths with -1 to (B, width) int32."""
    padded = torch.full((len(rows), width), -1, dtype=torch.int32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = torch.as_tensor(np.asarray(row, dtype=np.int32))
    return padded


def _check_steps(keys: Sequence[str], rows: Tensor, lengths: Tensor, step_ids: Tensor) -> None:
    if not step_ids.numel():
        return
    allowed = lengths[rows]
    wrong = (step_ids.amax(1) >= allowed).nonzero().flatten()
    if len(wrong):
        i = int(wrong[0])
        raise ValueError(
            f"row {keys[i]} has tokens of step {int(step_ids[i].max())}, its trajectory has {int(allowed[i])} steps"
        )

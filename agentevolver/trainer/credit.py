"""Step credit in the trainer: what a step's rows and records become on their way through the advantage processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from advantage_processor.batch import make_batch, pad_step_ids
from advantage_processor.pipeline import Processor
from agentevolver.types import RowKey

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Credit:
    """`advantages`: one float32 tensor (R_i) per row; `metrics` of the pipeline; the records went the way of
    `assign`."""

    advantages: list[Tensor]
    metrics: dict[str, float]


def assign(
    processor: Processor, step: int, records: Sequence[Record], keys: Sequence[str], step_ids: Sequence[Sequence[int]]
) -> Credit:
    """Return the advantages of rows that are trained on, and note them in their trajectories' records (key `credit`).

    Args:
        processor: the pipeline.
        step: the training step, from 1.
        records: the step's trajectories, failed ones too.
        keys: `{uid}_{session}_{index}` of each row.
        step_ids: per row, the step of each response token, -1 where nothing was sampled.

    Raises:
        ValueError: a row belongs to no trajectory.
        StageError: a stage broke its contract.
    """
    width = max((len(row) for row in step_ids), default=0)
    batch = make_batch(step, records, keys, pad_step_ids(step_ids, width))
    result = processor.process(batch)
    noted = result.records(batch)
    for record in records:
        if record["trajectory_id"] in noted:
            record["credit"] = noted[record["trajectory_id"]]
    return Credit([row[: len(ids)] for row, ids in zip(result.advantages, step_ids, strict=True)], result.metrics)


def synthetic_scales(records: Sequence[Record], keys: Sequence[str]) -> list[float]:
    """Return the factor on each row's advantages: what its task's metadata say (`advantage_scale`), else 1. `keys` as
    in `assign`."""
    scales = {
        record["trajectory_id"]: float(record["task"]["metadata"].get("advantage_scale", 1.0)) for record in records
    }
    return [scales[RowKey.of(key).trajectory_id] for key in keys]

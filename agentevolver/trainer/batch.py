"""The rows of a training step: named, ordered, masked where they failed, read from TransferQueue and put back.

Prompts are named, and rows are ordered, by what they are and not by when they came (`agentevolver.rollout.rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

from agentevolver.rollout.rows import group_name, row_order
from agentevolver.types import RowKey, Trajectory


def trained_on(batch: KVBatchMeta) -> list[int]:
    """Return the places of the rows that are neither padding nor withdrawn."""
    return [i for i, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]


def mask_rows(batch: KVBatchMeta, rows: Sequence[int]) -> None:
    """Mask rows of failed rollouts: a masked row takes part in no gradient (mask), no group's statistics (a group of
    its own) and no metric of verl's (padding).

    `rows` are places in the batch.
    """
    if not rows:
        return
    keys = [batch.keys[i] for i in rows]
    mask = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["response_mask"])["response_mask"]
    zeros = torch.nested.as_nested_tensor([torch.zeros_like(row) for row in mask.unbind()], layout=torch.jagged)
    fields = TensorDict({"response_mask": zeros, "loss_mask": zeros.clone()}, batch_size=len(keys))
    fields["uid"] = [f"withdrawn-{key}" for key in keys]
    # With the tags, which every later put of verl's returns as they lie in the queue.
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=fields, tags=[{"is_padding": True}] * len(keys))
    for i in rows:
        batch.tags[i]["is_padding"] = True


def plain(value: Any) -> dict[str, Any]:
    """Return a non-tensor field as the dict that was put, whichever wrapper TransferQueue returned it in."""
    unwrapped: dict[str, Any] = getattr(value, "data", value)
    return unwrapped


def rollouts_of(batch: KVBatchMeta) -> tuple[list[dict[str, Any]], list[Trajectory]]:
    """Return what each row says beside its tensors, and the rollouts, in order."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
    extra = [plain(fields) for fields in data["extra_fields"]]
    trajectories = [Trajectory.from_dict(fields["trajectory"]) for fields in extra if "trajectory" in fields]
    return extra, sorted(trajectories, key=lambda t: (t.group_id, t.rollout_id))


def put_advantages(batch: KVBatchMeta, keys: list[str], rows: list[torch.Tensor]) -> None:
    """Replace the advantages and returns of rows by one tensor (R_i) each."""
    _put(batch, keys, advantages=rows, returns=rows)


def _put(batch: KVBatchMeta, keys: list[str], **columns: list[torch.Tensor]) -> None:
    """Put columns of rows, one tensor (R_i) for each key."""
    nested = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in columns.items()}
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=TensorDict(nested, batch_size=len(keys)))


def put_scores(batch: KVBatchMeta, rows: Sequence[int], trajectories: Sequence[Trajectory]) -> None:
    """Put each row's score anew: on its last token, that of its rollout. `rows` are places in the batch."""
    keys = [batch.keys[i] for i in rows]
    if not keys:
        return
    scores = {one.trajectory_id: score for one in trajectories if (score := one.score) is not None}
    old = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["rm_scores"])["rm_scores"]
    made = [torch.zeros_like(row) for row in old.unbind()]
    for key, row in zip(keys, made, strict=True):
        row[-1] = scores[RowKey.of(key).trajectory_id]
    _put(batch, keys, rm_scores=made)


def scale_synthetic(batch: KVBatchMeta, trajectories: Sequence[Trajectory]) -> None:
    """Multiply each row's advantages by what its task says; its returns stay, which a critic learns."""
    keys = [batch.keys[i] for i in trained_on(batch)]
    if not keys:
        return
    scales = synthetic_scales(trajectories, keys)
    rows = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["advantages"])[
        "advantages"
    ].unbind()
    _put(batch, keys, advantages=[row * scale for row, scale in zip(rows, scales, strict=True)])


def sample_records(batch: KVBatchMeta, told: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return what the update is made of, one record a row, padding left out; `told`: the columns that rows were given
    for the loss."""
    rows = trained_on(batch)
    keys = [batch.keys[i] for i in rows]
    tensors = ["prompts", "responses", "response_mask", "rollout_log_probs", "old_log_probs", "advantages", *told]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=[*tensors, "extra_fields"])
    columns = {name: [row.tolist() for row in data[name].unbind()] for name in tensors}
    columns["step_ids"] = [plain(fields)["step_ids"] for fields in data["extra_fields"]]
    return [{"key": key, **{name: column[i] for name, column in columns.items()}} for i, key in enumerate(keys)]


Sample = Callable[..., tuple[KVBatchMeta, dict[str, Any]]]


class Places:
    """Names the groups of a training step, whose prompts may be fetched in several goes."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._step = -1
        self._named = 0

    def name(self, prompts: TensorDict, step: int) -> None:
        """Give each of a step's next prompts its group's name, in the place of the one that verl drew."""
        if step != self._step:
            self._step, self._named = step, 0
        tasks = [task["task_id"] for task in prompts["task"]]
        names = [group_name(self._seed, "train", step, self._named + i, task) for i, task in enumerate(tasks)]
        self._named += len(names)
        tu.assign_non_tensor_stack(prompts, "uid", names)


def ordered(sample: Sample) -> Sample:
    """Return a replay buffer's `sample` with the rows in order."""

    def inner(*arguments: Any, **options: Any) -> tuple[KVBatchMeta, dict[str, Any]]:
        batch, metrics = sample(*arguments, **options)
        batch.reorder(row_order(batch.keys))
        return batch, metrics

    return inner


def synthetic_scales(trajectories: Sequence[Trajectory], keys: Sequence[str]) -> list[float]:
    """Return the factor on each row's advantages: what its task's metadata say (`advantage_scale`), else 1.
    `keys` as in `assign`."""
    scales = {one.trajectory_id: float(one.task.metadata.get("advantage_scale", 1.0)) for one in trajectories}
    return [scales[RowKey.of(key).trajectory_id] for key in keys]

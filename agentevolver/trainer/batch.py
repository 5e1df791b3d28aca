"""The rows of a training step: group ids, order, masks, and access to TransferQueue."""

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
    """Return the indices of the rows that are neither padding nor masked."""
    return [i for i, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]


def mask_rows(batch: KVBatchMeta, rows: Sequence[int]) -> None:
    """Mask the rows at the given indices, those of failed rollouts."""
    # A masked row has no gradient (mask 0), no effect on the statistics of a group (a group id of its own), and no
    # effect on verl's metrics (tagged as padding).
    if not rows:
        return
    keys = [batch.keys[i] for i in rows]
    mask = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["response_mask"])["response_mask"]
    zeros = torch.nested.as_nested_tensor([torch.zeros_like(row) for row in mask.unbind()], layout=torch.jagged)
    fields = TensorDict({"response_mask": zeros, "loss_mask": zeros.clone()}, batch_size=len(keys))
    fields["uid"] = [f"withdrawn-{key}" for key in keys]
    # The queue's tags are set too: verl's later puts return the tags as they are stored there.
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=fields, tags=[{"is_padding": True}] * len(keys))
    for i in rows:
        batch.tags[i]["is_padding"] = True


def plain(value: Any) -> dict[str, Any]:
    """Unwrap a non-tensor field: TransferQueue returns the stored dict itself or in a wrapper with `.data`."""
    unwrapped: dict[str, Any] = getattr(value, "data", value)
    return unwrapped


def rollouts_of(batch: KVBatchMeta) -> tuple[list[dict[str, Any]], list[Trajectory]]:
    """Return the extra fields of each row, and the trajectories ordered by group id and rollout id."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
    extra = [plain(fields) for fields in data["extra_fields"]]
    trajectories = [Trajectory.from_dict(fields["trajectory"]) for fields in extra if "trajectory" in fields]
    return extra, sorted(trajectories, key=lambda t: (t.group_id, t.rollout_id))


def put_advantages(batch: KVBatchMeta, keys: list[str], rows: list[torch.Tensor]) -> None:
    """Replace advantages and returns; `rows` holds one tensor (R_i) for each key."""
    _put(batch, keys, advantages=rows, returns=rows)


def _put(batch: KVBatchMeta, keys: list[str], **columns: list[torch.Tensor]) -> None:
    nested = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in columns.items()}
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=TensorDict(nested, batch_size=len(keys)))


def put_scores(batch: KVBatchMeta, rows: Sequence[int], trajectories: Sequence[Trajectory]) -> None:
    """Put the score of its trajectory on the last token of each row. `rows` are indices into the batch."""
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
    """Multiply the advantages of each row by its task's factor (`synthetic_scales`). Returns stay unscaled: a critic
    learns them."""
    keys = [batch.keys[i] for i in trained_on(batch)]
    if not keys:
        return
    scales = synthetic_scales(trajectories, keys)
    rows = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["advantages"])[
        "advantages"
    ].unbind()
    _put(batch, keys, advantages=[row * scale for row, scale in zip(rows, scales, strict=True)])


def sample_records(batch: KVBatchMeta, told: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return one record for each row that is trained on. `told` names the columns that the loss reads."""
    rows = trained_on(batch)
    keys = [batch.keys[i] for i in rows]
    tensors = ["prompts", "responses", "response_mask", "rollout_log_probs", "old_log_probs", "advantages", *told]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=[*tensors, "extra_fields"])
    columns = {name: [row.tolist() for row in data[name].unbind()] for name in tensors}
    columns["step_ids"] = [plain(fields)["step_ids"] for fields in data["extra_fields"]]
    return [{"key": key, **{name: column[i] for name, column in columns.items()}} for i, key in enumerate(keys)]


Sample = Callable[..., tuple[KVBatchMeta, dict[str, Any]]]


class GroupNames:
    """Assign group ids in a training step, whose prompts may arrive in several batches."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._step = -1
        self._named = 0

    def name(self, prompts: TensorDict, step: int) -> None:
        """Replace verl's random `uid` of each prompt by a deterministic group id."""
        if step != self._step:
            self._step, self._named = step, 0
        tasks = [task["task_id"] for task in prompts["task"]]
        # Ids depend on seed, step and task only, so that a repeated run has the same ids and row order.
        names = [group_name(self._seed, "train", step, self._named + i, task) for i, task in enumerate(tasks)]
        self._named += len(names)
        tu.assign_non_tensor_stack(prompts, "uid", names)


def ordered(sample: Sample) -> Sample:
    """Wrap a replay buffer's `sample` so that it returns the rows in `row_order`."""

    def inner(*arguments: Any, **options: Any) -> tuple[KVBatchMeta, dict[str, Any]]:
        batch, metrics = sample(*arguments, **options)
        batch.reorder(row_order(batch.keys))
        return batch, metrics

    return inner


def synthetic_scales(trajectories: Sequence[Trajectory], keys: Sequence[str]) -> list[float]:
    """Return each row's advantage factor: `advantage_scale` in the task's metadata, else 1."""
    scales = {one.trajectory_id: float(one.task.metadata.get("advantage_scale", 1.0)) for one in trajectories}
    return [scales[RowKey.of(key).trajectory_id] for key in keys]

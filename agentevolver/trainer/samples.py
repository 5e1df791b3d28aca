"""The rows of a training step: which are trained on, what they hold, and what is put to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from agentevolver.trainer.credit import synthetic_scales
from agentevolver.trainer.loss import CLIP_COLUMN, GUIDED_COLUMN


def trained_on(batch: KVBatchMeta) -> list[int]:
    """Return the places of the rows that are neither padding nor withdrawn."""
    return [i for i, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]


def plain(value: Any) -> dict[str, Any]:
    """Return a non-tensor field as the dict that was put, whichever wrapper TransferQueue returned it in."""
    unwrapped: dict[str, Any] = getattr(value, "data", value)
    return unwrapped


def put_advantages(batch: KVBatchMeta, keys: list[str], rows: list[torch.Tensor]) -> None:
    """Replace the advantages and returns of rows by one tensor (R_i) each."""
    advantages = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    fields = TensorDict({"advantages": advantages, "returns": advantages.clone()}, batch_size=len(keys))
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=fields)


def scale_synthetic(batch: KVBatchMeta, trajectories: Sequence[dict[str, Any]]) -> None:
    """Multiply each row's advantages by what its task says; `trajectories` are the step's records."""
    keys = [batch.keys[i] for i in trained_on(batch)]
    if not keys:
        return
    scales = synthetic_scales(trajectories, keys)
    rows = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["advantages"])[
        "advantages"
    ].unbind()
    put_advantages(batch, keys, [row * scale for row, scale in zip(rows, scales, strict=True)])


def sample_records(batch: KVBatchMeta, *, guided: bool) -> list[dict[str, Any]]:
    """Return what the update is made of, one record a row, padding left out; `guided`: with the columns of guided
    training."""
    rows = trained_on(batch)
    keys = [batch.keys[i] for i in rows]
    tensors = ["prompts", "responses", "response_mask", "rollout_log_probs", "old_log_probs", "advantages"]
    if guided:
        tensors += [GUIDED_COLUMN, CLIP_COLUMN]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=[*tensors, "extra_fields"])
    columns = {name: [row.tolist() for row in data[name].unbind()] for name in tensors}
    columns["step_ids"] = [plain(fields)["step_ids"] for fields in data["extra_fields"]]
    return [{"key": key, **{name: column[i] for name, column in columns.items()}} for i, key in enumerate(keys)]

"""The update of a training step: its number of optimiser steps, and the rows of each mini-batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict

from agentevolver.trainer.loss import ROWS_COLUMN


def optimiser_steps(config: Any) -> int:
    """Return the optimiser steps of a training step, for each of its `ppo_epochs`."""
    # verl counts rows instead: a batch with twenty rows an episode would take twenty times as many steps.
    return int(config.data.train_batch_size // config.actor_rollout_ref.actor.ppo_mini_batch_size)


def required_multiple(config: Any, ranks: int, steps: int) -> int:
    """Return the multiple that the number of rows, padding included, must have. `config` is `actor_rollout_ref`."""
    actor, rollout, ref = config.actor, config.rollout, config.ref
    update = 1 if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu or 1
    passes = [
        part.log_prob_micro_batch_size_per_gpu or 1 for part in (rollout, ref) if not part.log_prob_use_dynamic_bsz
    ]
    # Equal mini-batches on every rank, and whole micro-batches where these count rows instead of tokens.
    return ranks * math.lcm(steps * update, *passes)


def mini_batches(
    counts: Sequence[bool], ranks: int, steps: int, seed: int | None = None
) -> tuple[list[int], list[int]]:
    """Spread the counted rows over the mini-batches, which differ by at most one such row.

    Args:
        counts: whether a row has a token that is trained on. Rows stay on their rank.
        seed: shuffles the rows; None keeps their order.

    Returns the new order, and for each position the counted rows of its mini-batch over all ranks.
    """
    # verl gives each rank a contiguous part of equal size and cuts it into equal mini-batches.
    share = len(counts) // ranks
    size = share // steps
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    order: list[int] = []
    totals = [0] * steps
    turn = 0  # the mini-batch that takes the next surplus row
    for rank in range(ranks):
        rows = list(range(rank * share, (rank + 1) * share))
        if generator is not None:
            rows = [rows[i] for i in torch.randperm(share, generator=generator).tolist()]
        counted, others = [i for i in rows if counts[i]], [i for i in rows if not counts[i]]
        each, over = divmod(len(counted), steps)
        for step in range(steps):
            taken = each + ((step - turn) % steps < over)
            order += counted[:taken] + others[: size - taken]
            del counted[:taken], others[: size - taken]
            totals[step] += taken
        turn = (turn + over) % steps
    return order, [totals[place % share // size] for place in range(len(counts))]


def arrange(batch: KVBatchMeta, rows: Sequence[int], ranks: int, steps: int, seed: int | None = None) -> None:
    """Order a batch into mini-batches in place, and write the column `ROWS_COLUMN`. `rows` are the unmasked rows'
    indices."""
    counts = [False] * len(batch.keys)
    if rows:
        keys = [batch.keys[i] for i in rows]
        masks = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["response_mask"])[
            "response_mask"
        ]
        for i, mask in zip(rows, masks.unbind(), strict=True):
            counts[i] = bool(mask.any())
    order, numbers = mini_batches(counts, ranks, steps, seed)
    batch.reorder(order)
    put_columns(batch, {ROWS_COLUMN: torch.tensor(numbers, dtype=torch.float32)})


def put_columns(batch: KVBatchMeta, columns: dict[str, torch.Tensor]) -> None:
    """Write one number for each row (N) into columns that the workers receive too."""
    tq.kv_batch_put(
        keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(columns, batch_size=len(batch.keys))
    )
    if batch.fields is not None:  # since the advantages, verl lists the columns that workers receive
        batch.fields = [*batch.fields, *(name for name in columns if name not in batch.fields)]


def update_actor(workers: Any, batch: KVBatchMeta, actor: Any, steps: int, temperature: float) -> dict[str, Any]:
    """Update the policy on a batch from `arrange` and return the metrics.

    `actor` is the section `actor_rollout_ref.actor`, `steps` counts optimiser steps an epoch.
    """
    # Like verl's `PPOTrainer._update_actor`, but with this project's mini-batches.
    rows = len(batch.keys) // steps
    batch.extra_info.update(
        calculate_entropy=actor.calculate_entropy or actor.entropy_coeff != 0.0,
        distillation_use_topk=False,
        distillation_only=False,
        global_batch_size=rows,
        mini_batch_size=rows,
        epochs=actor.ppo_epochs,
        seed=actor.data_loader_seed,
        dataloader_kwargs={"shuffle": False},  # `arrange` did
        temperature=temperature,
    )
    metrics: dict[str, Any] = rename_dict(workers.update_actor(batch)["metrics"], "actor/")
    metrics["perf/mfu/actor"] = metrics.pop("actor/mfu")
    taken = float(len(metrics["actor/grad_norm"]))
    reduced: dict[str, Any] = reduce_metrics(metrics)
    return reduced | {"actor/optimiser_steps": taken}

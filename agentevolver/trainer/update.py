"""The update of a training step: how many optimiser steps it takes, and of which rows each is made.

`ppo_mini_batch_size` is tasks. verl multiplies it by the rollouts of a task and counts rows, so that a batch with
twenty rows an episode takes twenty times as many optimiser steps; it divides a sequence mean by all rows of a
mini-batch, padding too. Here the number of steps is train_batch_size / ppo_mini_batch_size whatever a trajectory
became, the rows that count are spread over them evenly, and each row is told how many of its mini-batch count, for the
denominator (`agentevolver.trainer.loss`).
"""

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
    """Return the optimiser steps of a training step, in each of its `ppo_epochs`:
    tasks of a step by tasks of a mini-batch."""
    return int(config.data.train_batch_size // config.actor_rollout_ref.actor.ppo_mini_batch_size)


def required_multiple(config: Any, ranks: int, steps: int) -> int:
    """Return what the number of a batch's rows, padding included, must be a multiple of.

    That is equal mini-batches on every rank; and whole micro-batches, where their rows are counted instead of their
    tokens.

    Args:
        config: the section `actor_rollout_ref`.
        ranks: data-parallel ranks.
        steps: optimiser steps.
    """
    actor, rollout, ref = config.actor, config.rollout, config.ref
    update = 1 if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu or 1
    passes = [
        part.log_prob_micro_batch_size_per_gpu or 1 for part in (rollout, ref) if not part.log_prob_use_dynamic_bsz
    ]
    return ranks * math.lcm(steps * update, *passes)


def mini_batches(
    counts: Sequence[bool], ranks: int, steps: int, seed: int | None = None
) -> tuple[list[int], list[int]]:
    """Spread the rows that count over a step's mini-batches: no two differ by more than one such row.

    verl gives every rank an equal part of the rows, one part after the other, and cuts each part into equal
    mini-batches; what counts stays on its rank. Where all rows count, their order stays as it is.

    Args:
        counts: whether a row has a token that is trained on; as many rows as a multiple of ranks x steps.
        ranks: data-parallel ranks.
        steps: optimiser steps.
        seed: draws the rows of each mini-batch at random; None takes them in order.

    Returns:
        The rows' new order, and for each place in it the number of rows that count in its mini-batch, over all ranks.
    """
    share = len(counts) // ranks
    size = share // steps
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    order: list[int] = []
    totals = [0] * steps
    turn = 0  # the mini-batch that takes the next row which is one too many
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
    """Order a batch into mini-batches and give each row the number of rows that count in its own, as a column.

    Args:
        batch: the step's rows; changed in place.
        rows: the places of those that are neither padding nor withdrawn.
        ranks, steps, seed: as for `mini_batches`.
    """
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
    """Give every row of a batch numbers of its own (N each), which the workers are given too."""
    tq.kv_batch_put(
        keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(columns, batch_size=len(batch.keys))
    )
    if batch.fields is not None:  # verl lists what the workers are given since the advantages
        batch.fields = [*batch.fields, *(name for name in columns if name not in batch.fields)]


def update_actor(workers: Any, batch: KVBatchMeta, actor: Any, steps: int, temperature: float) -> dict[str, Any]:
    """Update the policy on an arranged batch and return the metrics: verl's `PPOTrainer._update_actor`, with
    mini-batches of our size.

    `actor/optimiser_steps` among them is how many were taken, in all epochs.

    Args:
        workers: the actor's worker group.
        batch: the step's rows, as `arrange` left them.
        actor: the section `actor_rollout_ref.actor`.
        steps: optimiser steps an epoch.
        temperature: what the rows were sampled at.
    """
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

"""Turn-by-turn update (SeeUPO, arXiv 2602.06554) on rows that hold whole trajectories.

A training step makes one update for each turn, on the tokens of that turn alone. After each update, the trajectory's
running ratio M is multiplied by the ratio of that turn, and the advantages of the remaining turns by M:

    s_k = clip(exp(mean over the turn's tokens of (log pi_now - log pi_old)), 1 - c, 1 + c)
    M   = clip(M s_k, 1 - c, 1 + c)                 1 at the beginning of a training step
    A_j = M A_j                                     for each turn j that is not updated yet

`step_ids` give the turn of each token, so rows are neither split nor padded. A trajectory without the turn is left out
of the update and keeps its M. Passes end with the turn (`prefixes`). A training step is one step of the learning-rate
schedule.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.workers.utils.padding import response_from_nested

from agentevolver.recipes.seeupo import prefixes
from agentevolver.recipes.seeupo.worker import TurnWorker
from agentevolver.trainer.actor_update import Update
from agentevolver.trainer.batch import plain
from agentevolver.trainer.loss import SUM
from agentevolver.trainer.parts import TrainerPart
from agentevolver.trainer.update import arrange, update_actor
from agentevolver.types import RowKey


def turn_masks(masks: Sequence[Tensor], step_ids: Sequence[Tensor], turn: int) -> list[Tensor]:
    return [mask * (ids == turn).to(mask.dtype) for mask, ids in zip(masks, step_ids, strict=True)]


def turn_ratios(
    differences: Sequence[Tensor], masks: Sequence[Tensor], owners: Sequence[int], count: int, clip: float
) -> Tensor:
    """Return the clipped ratio of a turn for each of `count` trajectories, float64; 1 for a trajectory without a masked
    token.

    `differences` are log-probs now minus those before the training step, and `masks` select the turn's tokens (R_i a
    row). `owners` are the rows' trajectories; several rows may belong to one.
    """
    total, tokens = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    for difference, mask, owner in zip(differences, masks, owners, strict=True):
        weight = mask.double()
        total[owner] += (difference.double() * weight).sum()
        tokens[owner] += weight.sum()
    return torch.exp(total / tokens.clamp(min=1.0)).clamp(1.0 - clip, 1.0 + clip)


def next_running(running: Tensor, ratios: Tensor, clip: float) -> Tensor:
    return (running * ratios).clamp(1.0 - clip, 1.0 + clip)


class TurnUpdates(TrainerPart):
    worker = TurnWorker

    def __init__(self, clip: float) -> None:
        self.clip = clip

    def update_actor(self, workers: Any, batch: KVBatchMeta, rows: Sequence[int], update: Update) -> dict[str, Any]:
        """Update the policy turn by turn and return the metrics. Masks and advantages in the queue are restored at the
        end, also after an error.

        Means of verl's metrics are means over the updates, sums over tokens are sums, and the learning rate is the last
        one. `actor/turns` and `actor/turn_ratio/...` describe M.
        """
        table = _Table.read(batch, [batch.keys[i] for i in rows])
        running = torch.ones(table.trajectories, dtype=torch.float64)
        order = table.turns[::-1]
        found: list[dict[str, Any]] = []
        try:
            for place, turn in enumerate(order):
                is_last = place == len(order) - 1
                masks = turn_masks(table.masks, table.step_ids, turn)
                own = [i for i, mask in enumerate(masks) if bool(mask.any())]
                table.put(masks, [a * running[o] for a, o in zip(table.advantages, table.owners, strict=True)])
                part = _part(batch, [rows[i] for i in own], update.multiple)
                arrange(part, range(len(own)), update.ranks, update.steps)
                workers.hold_learning_rate(not is_last)
                found.append(update_actor(workers, part, update.actor, update.steps, update.temperature))
                if not is_last:
                    now = _log_probs(workers, part, [table.keys[i] for i in own], update.temperature)
                    ratios = turn_ratios(
                        [new - table.old[i] for new, i in zip(now, own, strict=True)],
                        [masks[i] for i in own],
                        [table.owners[i] for i in own],
                        table.trajectories,
                        self.clip,
                    )
                    running = next_running(running, ratios, self.clip)
        finally:
            table.put(table.masks, table.advantages)
            workers.hold_learning_rate(False)
        return merged(found) | _told(running, self.clip, len(order))


@dataclass(frozen=True, slots=True)
class _Table:
    """The N rows of a training step: mask, advantages and old log-probs (R_i each), turn of each token, trajectory of
    each row."""

    partition: str | None
    keys: list[str]
    masks: list[Tensor]
    advantages: list[Tensor]
    old: list[Tensor]
    step_ids: list[Tensor]
    owners: list[int]

    @classmethod
    def read(cls, batch: KVBatchMeta, keys: list[str]) -> _Table:
        fields = ["response_mask", "advantages", "old_log_probs", "extra_fields"]
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
        masks, advantages, old = ([row.clone() for row in data[name].unbind()] for name in fields[:3])
        step_ids = [torch.tensor(plain(one)["step_ids"]) for one in data["extra_fields"]]
        places: dict[str, int] = {}
        owners = [places.setdefault(RowKey.of(key).trajectory_id, len(places)) for key in keys]
        return cls(batch.partition_id, keys, masks, advantages, old, step_ids, owners)

    @property
    def trajectories(self) -> int:
        return max(self.owners, default=-1) + 1

    @property
    def turns(self) -> list[int]:
        """The turns with at least one trained token."""
        pairs = zip(self.masks, self.step_ids, strict=True)
        return sorted({turn for mask, ids in pairs for turn in ids[mask.bool()].tolist() if turn >= 0})

    def put(self, masks: Sequence[Tensor], advantages: Sequence[Tensor]) -> None:
        scaled = [row.to(old.dtype) for row, old in zip(advantages, self.advantages, strict=True)]
        columns = {"response_mask": list(masks), "loss_mask": list(masks), "advantages": scaled}
        fields = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in columns.items()}
        tq.kv_batch_put(
            keys=self.keys, partition_id=self.partition, fields=TensorDict(fields, batch_size=len(self.keys))
        )


def _part(batch: KVBatchMeta, own: Sequence[int], multiple: int) -> KVBatchMeta:
    """Return the batch of the rows `own`, filled up to a multiple with rows that have no token of the turn. Passes over
    it end at the mask."""
    taken = set(own)
    lacking = -len(own) % multiple
    filling = [i for i in range(len(batch.keys)) if i not in taken][:lacking]
    part = batch.select_keys([batch.keys[i] for i in (*own, *filling)])
    # `select_keys` shares these with the batch, and an update changes them.
    part.fields, part.extra_info = copy.copy(batch.fields), {**(batch.extra_info or {}), prefixes.KEY: True}
    return part


def _log_probs(workers: Any, part: KVBatchMeta, keys: list[str], temperature: float) -> list[Tensor]:
    """Return the log-probs (R_i each) of the responses under the current policy. The column `old_log_probs` is not
    changed."""
    part.extra_info.update(calculate_entropy=False, compute_loss=False, temperature=temperature)
    workers.compute_log_prob(part)
    data = tq.kv_batch_get(keys=keys, partition_id=part.partition_id, select_fields=["log_probs", "response_mask"])
    return list(response_from_nested(data["log_probs"], data["response_mask"]).unbind())


def merged(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for name in {name: None for one in found for name in one}:
        values = [float(one[name]) for one in found if name in one]
        if name.endswith(SUM) or name == "actor/optimiser_steps":
            metrics[name] = sum(values)
        else:
            metrics[name] = values[-1] if name == "actor/lr" else fmean(values)
    return metrics


def _told(running: Tensor, clip: float, turns: int) -> dict[str, float]:
    told = {"actor/turns": float(turns)}
    if len(running):
        at_bound = ((running - 1.0).abs() >= clip - 1e-9).double().mean()
        told |= {
            "actor/turn_ratio/mean": float(running.mean()),
            "actor/turn_ratio/min": float(running.min()),
            "actor/turn_ratio/max": float(running.max()),
            "actor/turn_ratio/clipped": float(at_bound),
        }
    return told

"""Training-inference mismatch: the difference between the engine's and the trainer's log-probs of the same tokens.

Large differences mean other weights, another prompt or another temperature.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transfer_queue as tq
from torch import Tensor
from transfer_queue import KVBatchMeta

from agentevolver.trainer.batch import trained_on
from agentevolver.types import RowKey, Trajectory

logger = logging.getLogger(__name__)

MEAN, MAX = "rollout/log_prob_diff/mean", "rollout/log_prob_diff/max"
STALE = "rollout/staleness/log_prob_diff"


def difference(sampled: Sequence[Tensor], trained: Sequence[Tensor], masks: Sequence[Tensor]) -> dict[str, float]:
    """Return mean and maximum of |sampled - trained| in nats over the masked-in tokens, or {} without tokens.

    Each argument holds one tensor (R_i) a row. `masks` is 1 where the policy sampled the token.
    """
    gaps = [
        (one.double() - other.double()).abs()[mask.bool()]
        for one, other, mask in zip(sampled, trained, masks, strict=True)
    ]
    every = torch.cat(gaps) if gaps else torch.zeros(0)
    return {MEAN: float(every.mean()), MAX: float(every.max())} if len(every) else {}


def of_batch(batch: KVBatchMeta, trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
    """Return `difference` over the trained rows whose training prompt equals the prompt they were sampled from.

    `version` is the step that made the trainer's present weights. Rows sampled by older weights are reported as
    `STALE`.
    """
    # Rows without their guidance are trained on another prompt than they were sampled from.
    stripped = {one.trajectory_id for one in trajectories if one.stripped}
    rows = [i for i in trained_on(batch) if RowKey.of(batch.keys[i]).trajectory_id not in stripped]
    stale = {i for i in rows if batch.tags[i].get("min_global_steps", version) < version}
    found = _of_rows(batch, [i for i in rows if i not in stale])
    older = _of_rows(batch, sorted(stale))
    return found | ({STALE: older[MEAN]} if older else {})


def _of_rows(batch: KVBatchMeta, rows: Sequence[int]) -> dict[str, float]:
    if not rows:
        return {}
    names, keys = ["rollout_log_probs", "old_log_probs", "response_mask"], [batch.keys[i] for i in rows]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=names)
    return difference(*(list(data[name].unbind()) for name in names))


class MismatchWatch:
    """Warns when the mean difference of a step exceeds `bound` nats a token, and again whenever it doubles. None:
    never."""

    def __init__(self, bound: float | None) -> None:
        self._bound = bound

    def look(self, metrics: Mapping[str, Any]) -> None:
        mean = metrics.get(MEAN)
        if self._bound is None or mean is None or mean <= self._bound:
            return
        logger.warning(
            "the log-probs of the rollouts differ from the trainer's by %.3g nats a token (%s; at most %.3g), more "
            "than %.3g: the gradient is biased. See that the weights reach the engine and that both have one precision "
            "and temperature, or set algorithm.rollout_correction.rollout_is=token "
            "(docs/training.md#training-inference-mismatch)",
            *(mean, MEAN, metrics.get(MAX, mean), self._bound),
        )
        self._bound = 2 * mean

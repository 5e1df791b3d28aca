"""Training-inference mismatch: how far the log-probs that the engine sampled with are from the trainer's, at the same
weights and on the same tokens.

A difference of 0 is what the policy gradient assumes. What is left comes from kernels, precision and quantisation; a
large one is weights that did not arrive, another prompt, or another temperature. Rows that lost their guidance are left
out: they were sampled from another prompt than they are trained on. Rows that weights of earlier steps sampled (where
rollouts go on over updates) have a number of their own, of which their staleness is a part.
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
    """Return mean and maximum over tokens of |log-prob of the engine - log-prob of the trainer|, {} without tokens.

    Args:
        sampled: per row (R_i) log-probs in nats as the engine gave them.
        trained: per row (R_i) those of the trainer.
        masks: per row (R_i), 1 where the policy sampled the token.
    """
    gaps = [
        (one.double() - other.double()).abs()[mask.bool()]
        for one, other, mask in zip(sampled, trained, masks, strict=True)
    ]
    every = torch.cat(gaps) if gaps else torch.zeros(0)
    return {MEAN: float(every.mean()), MAX: float(every.max())} if len(every) else {}


def of_batch(batch: KVBatchMeta, trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
    """Return `difference` of the step's rows that are trained on with the prompt that they were sampled from, and the
    mean of those that weights of earlier steps sampled.

    Args:
        batch: the step's rows.
        trajectories: its rollouts.
        version: of the weights that the trainer has, named by the step after which they were so.
    """
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
    """Warns when the mean difference of a step exceeds a bound: at first, and whenever it has doubled since.

    Args:
        bound: nats a token, None: never.
    """

    def __init__(self, bound: float | None) -> None:
        self._bound = bound

    def look(self, metrics: Mapping[str, Any]) -> None:
        """Look at the metrics of a step."""
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

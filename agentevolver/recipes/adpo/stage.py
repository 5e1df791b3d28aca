"""The advantage stage `ambiguity`: smaller advantages for tasks with an ambiguous label."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from advantage_processor.batch import CreditBatch
from advantage_processor.pipeline import Advantages, StageContext
from agentevolver.recipes.adpo.ambiguity import BUCKETS, bucket, check_range, p_hat, scale


class AmbiguityStage:
    """Multiplies a task's advantages by `s_min` at p = `lo`, rising to 1 at p = `hi`; by 1 if p is null.

    It must run after the group's normalisation, which would cancel it: all rollouts of a group share one p. Raises
    PHatError if a task has no p.
    """

    rescales = True

    def __init__(self, context: StageContext, *, lo: float = 0.3, hi: float = 0.8, s_min: float = 0.6) -> None:
        check_range(lo, hi)
        if not 0.0 < s_min <= 1.0:
            raise ValueError(f"s_min = {s_min!r}: write a number above 0, at most 1")
        self._lo, self._hi, self._s_min = lo, hi, s_min

    def __call__(self, batch: CreditBatch, advantages: Tensor) -> Advantages:
        shares = [p_hat(trajectory.task) for trajectory in batch.trajectories]
        factor = torch.tensor([scale(p, self._lo, self._hi, self._s_min) for p in shares], dtype=torch.float64)
        scaled = advantages * factor[:, None]
        return Advantages(scaled, self._metrics(batch, shares, factor) | _size(batch, advantages, scaled))

    def _metrics(self, batch: CreditBatch, shares: Sequence[float | None], factor: Tensor) -> dict[str, float]:
        counted = [i for i, valid in enumerate(batch.valid.tolist()) if valid]
        if not counted:
            return {}
        known = [p for i in counted if (p := shares[i]) is not None]
        buckets = [bucket(shares[i], self._lo, self._hi) for i in counted]
        metrics = {"adpo/scale/mean": float(factor[counted].mean())}
        metrics |= {f"adpo/share/{name}": buckets.count(place) / len(counted) for place, name in enumerate(BUCKETS)}
        return metrics | ({"adpo/p/mean": sum(known) / len(known)} if known else {})


def _size(batch: CreditBatch, before: Tensor, after: Tensor) -> dict[str, float]:
    if not bool(batch.mask.any()):
        return {}
    return {
        f"adpo/advantage/{name}": float(values[batch.mask].square().mean().sqrt())
        for name, values in (("before", before), ("after", after))
    }

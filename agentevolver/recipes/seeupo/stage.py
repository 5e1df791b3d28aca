"""The advantage stage `batch_norm`: advantages standardised over all steps of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from advantage_processor.adca import SPREADLESS
from advantage_processor.batch import CreditBatch
from advantage_processor.pipeline import Advantages, StageContext


class BatchNormStage:
    """Standardises the advantages of all steps of a batch together, and clamps them (SeeUPO, arXiv 2602.06554).

    It follows `outcome` with `norm_by_std: false`, which leaves the outcome minus its group's mean. Every step counts
    once. If all advantages are equal, the result is 0.
    """

    def __init__(self, context: StageContext, *, clip: float = 3.0) -> None:
        if not clip > 0.0:
            raise ValueError(f"stage batch_norm: clip is {clip!r}, write a number above 0")
        self._clip = clip

    def __call__(self, batch: CreditBatch, advantages: Tensor) -> Advantages:
        counted = batch.mask
        if not bool(counted.any()):
            return Advantages(torch.zeros_like(advantages))
        values = advantages[counted]
        centred = values - values.mean()
        scale = centred.square().mean().sqrt()
        new = torch.zeros_like(advantages)
        if float(scale) > SPREADLESS:
            new[counted] = (centred / scale).clamp(-self._clip, self._clip)
        return Advantages(new, {"advantage/batch_std": float(scale)})

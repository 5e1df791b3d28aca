"""Advantages of diagnosed steps scaled by what went wrong: the stage `diagnosis`."""

from __future__ import annotations

import torch
from torch import Tensor

from advantage_processor.batch import CreditBatch
from advantage_processor.pipeline import Advantages, StageContext
from agentevolver.recipes.seal.factors import bounded, checked_scales


class DiagnosisStage:
    """Scales the advantages of diagnosed steps by the kind of what went wrong,
    so that a failure teaches most where it happened (SEAL).

    Options are factors by kind (`task_manager.diagnose.KINDS`), on top of `SCALES`. Their deviations from the mean over
    the steps of the batch are then shrunk alike, so that they stay within 0.5..1.5 with the mean 1. Trajectories
    without a diagnosis take part with the factor 1.
    """

    rescales = True

    def __init__(self, context: StageContext, **scales: float) -> None:
        self._scales = checked_scales(scales)

    def __call__(self, batch: CreditBatch, advantages: Tensor) -> Advantages:
        wanted = torch.ones(len(batch.trajectories), batch.width, dtype=torch.float64)
        diagnosed = torch.zeros_like(wanted, dtype=torch.bool)
        for row, trajectory in enumerate(batch.trajectories):
            for one in trajectory.diagnoses:
                wanted[row, one.step] = max(float(wanted[row, one.step]), self._scales.get(one.kind, 1.0))
                diagnosed[row, one.step] = True
        mask = batch.mask
        if not bool(mask.any()):
            return Advantages(advantages)
        factor = torch.ones_like(wanted)
        factor[mask] = torch.tensor(bounded(wanted[mask].tolist()), dtype=torch.float64)
        counted = diagnosed & mask
        report = {"diagnosis/steps": float(counted.sum()), "diagnosis/share": float(counted[mask].double().mean())}
        if bool(counted.any()):
            report["diagnosis/scale/mean"] = float(factor[counted].mean())
        return Advantages(advantages * factor * mask, report)

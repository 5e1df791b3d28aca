"""The stages that make advantages: the outcome's, the attribution's, the scale of synthetic tasks.

A stage takes the batch and the advantages so far, (T, K) float64 per step, and returns new ones with what it has to
report. It never changes what it was given. A stage of your own has this form: see `Stage`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from advantage_processor import gigpo
from advantage_processor.adca import PRESETS, AdcaConfig, Credit, Steps, alpha_at, step_credit
from advantage_processor.batch import CreditBatch, Record
from advantage_processor.credit_metrics import anchor_metrics, credit_metrics
from advantage_processor.grpo import Singleton, outcome_advantages
from advantage_processor.labels import LabelStatus
from advantage_processor.metrics import label_metrics
from advantage_processor.settings import AttributionSettings


@dataclass(frozen=True, slots=True)
class StageContext:
    """What a stage is made with: the settings, and whether training mixes original and synthetic tasks."""

    settings: AttributionSettings
    hybrid_data: bool = False


@dataclass(frozen=True, slots=True)
class StageResult:
    """`advantages` (T, K) per step; `metrics` to report; `rewards` (T, K) step rewards, when the stage makes them."""

    advantages: Tensor
    metrics: dict[str, float] = field(default_factory=dict)
    rewards: Tensor | None = None


class Stage(Protocol):
    """One stage: made once with the context and the options that stand beside its name, called every training step."""

    def __call__(self, batch: CreditBatch, advantages: Tensor) -> StageResult:
        """Return new advantages (T, K); 0 outside `batch.mask`."""


class OutcomeStage:
    """Every step gets its trajectory's group-relative outcome advantage (GRPO)."""

    def __init__(self, context: StageContext, *, singleton: Singleton = "score", norm_by_std: bool = True) -> None:
        if singleton not in ("score", "neutral"):
            raise ValueError(f"stage outcome: singleton is {singleton!r}, write score or neutral")
        self._singleton = singleton
        self._norm_by_std = norm_by_std

    def __call__(self, batch: CreditBatch, advantages: Tensor) -> StageResult:
        outcome = outcome_advantages(
            batch.outcomes, batch.groups, batch.valid, singleton=self._singleton, norm_by_std=self._norm_by_std
        )
        return StageResult(outcome[:, None] * batch.mask)


class AttributionStage:
    """Step-level credit, by whoever `attributor` names, within the first `prm_steps` training steps.

    Labels and step rewards replace the advantages (ADCA-GRPO); anchor states add to them (GiGPO). With `enable: false`
    and
    `enable_adca_metric: true` the credit is reported and the advantages stay as they are.
    """

    def __init__(self, context: StageContext) -> None:
        self._settings = context.settings
        self._config = adca_config(context.settings)

    def __call__(self, batch: CreditBatch, advantages: Tensor) -> StageResult:
        if not self._settings.attributed_at(batch.step):
            return StageResult(advantages)
        credit = {"llm": self._from_labels, "env": self._from_rewards, "gigpo": self._from_anchors}[
            self._settings.attributor
        ]
        result = credit(batch, advantages)
        return result if self._settings.enable else StageResult(advantages, result.metrics)

    def _from_labels(self, batch: CreditBatch, advantages: Tensor) -> StageResult:
        lengths = batch.lengths.tolist()
        fitting = [
            a.status is LabelStatus.LABELLED and len(a.good) == k
            for a, k in zip(batch.attributions, lengths, strict=True)
        ]
        scores = batch.table(
            [
                [1.0 if good else -1.0 for good in a.good] if fits else []
                for a, fits in zip(batch.attributions, fitting, strict=True)
            ]
        )
        labelled = torch.tensor(fitting, dtype=torch.bool)
        result = self._fused(batch, scores, labelled)
        report = label_metrics(batch, labelled, scores, self._settings.success_threshold)
        return StageResult(result.advantages, report | result.metrics, result.rewards)

    def _from_rewards(self, batch: CreditBatch, advantages: Tensor) -> StageResult:
        rewards = batch.table([[float(step["reward"]) for step in record["steps"]] for record in batch.trajectories])
        finite = rewards.isfinite().all(1)
        given = (rewards != 0.0).any(1) & batch.valid & finite
        groups = int(batch.groups.max()) + 1 if len(batch.groups) else 0
        speaking = torch.zeros(groups, dtype=torch.bool).index_put_((batch.groups[given],), torch.tensor(True))
        labelled = speaking[batch.groups] & finite
        return self._fused(batch, rewards.nan_to_num(0.0, 0.0, 0.0), labelled)

    def _fused(self, batch: CreditBatch, scores: Tensor, labelled: Tensor) -> StageResult:
        adca = self._settings.adca_grpo
        alpha = alpha_at(
            batch.step,
            alpha=adca.alpha,
            alpha_min=adca.alpha_min,
            schedule=adca.schedule,
            total_steps=adca.total_steps,
            progress=adca.alpha_progress,
        )
        steps = Steps(scores, batch.lengths, batch.outcomes, batch.groups, labelled, batch.valid)
        credit: Credit = step_credit(steps, self._config, alpha)
        report = {
            "prm/alpha_base": adca.alpha,
            "prm/alpha_t": alpha,
            **credit_metrics(steps, credit, self._config, 1.0 if self._config.outcome == "only_prm" else alpha),
        }
        if adca.schedule != "constant":
            report["prm/alpha_progress"] = (
                min(batch.step / adca.total_steps, 1.0) if adca.alpha_progress is None else adca.alpha_progress
            )
        return StageResult(credit.advantages, report, credit.rewards)

    def _from_anchors(self, batch: CreditBatch, advantages: Tensor) -> StageResult:
        options = self._settings.gigpo
        anchors = gigpo.anchor_ids(
            [states(record) for record in batch.trajectories], batch.groups.tolist(), similarity=options.similarity
        )
        if options.rewards == "env":
            rewards = batch.table(
                [[float(step["reward"]) for step in record["steps"]] for record in batch.trajectories]
            )
        else:
            last = torch.arange(batch.width) == batch.lengths[:, None] - 1
            rewards = batch.outcomes[:, None] * last
        returns = gigpo.discounted_returns(rewards * batch.mask, options.gamma)
        step_advantages = gigpo.step_advantages(returns, anchors, batch.valid, norm_by_std=options.norm_by_std)
        report = anchor_metrics(anchors, gigpo.shared(anchors, batch.valid), step_advantages, batch.mask)
        return StageResult(advantages + options.omega * step_advantages, report, rewards)


class HybridScaleStage:
    """Scales the advantages of synthetic tasks where training mixes them with original ones.

    By `scale`, if that is given, else by what the task's metadata say (`advantage_scale`), else by 0.5 (paper 7.1.3).
    """

    def __init__(self, context: StageContext, *, scale: float | None = None) -> None:
        if scale is not None and scale < 0.0:
            raise ValueError(f"stage hybrid_scale: scale is {scale!r}, write a number from 0 on")
        self._scale = scale
        self._hybrid_data = context.hybrid_data

    def __call__(self, batch: CreditBatch, advantages: Tensor) -> StageResult:
        if not self._hybrid_data:
            return StageResult(advantages)
        tasks = [record["task"] for record in batch.trajectories]
        synthetic = torch.tensor([bool(task["open_query"]) for task in tasks], dtype=torch.bool)
        factor = torch.tensor([self._factor(task) for task in tasks], dtype=torch.float64)
        counted = int(batch.valid.sum())
        share = float((synthetic & batch.valid).sum()) / counted if counted else 0.0
        return StageResult(advantages * factor[:, None], {"advantage/synthetic_share": share})

    def _factor(self, task: Record) -> float:
        if not task["open_query"]:
            return 1.0
        return float(task.get("metadata", {}).get("advantage_scale", 0.5)) if self._scale is None else self._scale


def adca_config(settings: AttributionSettings) -> AdcaConfig:
    """Return the variant of ADCA-GRPO that the settings describe."""
    adca, preset = settings.adca_grpo, PRESETS[settings.adca_grpo.preset]
    return AdcaConfig(
        scheme=adca.prm_scheme,
        standardise=adca.do_batch_norm,
        statistics="equal" if adca.equal_trajectory_weight else "pooled",
        sigma=adca.sigma or preset.sigma,
        sigma_floor=preset.sigma_floor if adca.sigma_floor is None else adca.sigma_floor,
        base=adca.fix_base or preset.base,
        outcome=adca.orm_distribution,
        length_normalisation=adca.enable_length_normalization,
        consistent_scale=settings.consistent_scale,
        pos_unconsistent_scale=settings.pos_unconsistent_scale,
        neg_unconsistent_scale=settings.neg_unconsistent_scale,
        success_threshold=settings.success_threshold,
    )


def states(record: Record) -> list[str]:
    """Return the text that each step of a trajectory answered: "" at first (the opening is the group's own), then
    observations.

    What the policy said to others than the environment (a plan, a context decision) is compared with its like alone.
    """
    found, seen = [], ""
    for step in record["steps"]:
        kind = step.get("kind", "action")
        found.append(seen if kind == "action" else f"{kind}: {seen}")
        if kind == "action":
            seen = str(step["observation"])
    return found

"""Advantage pipeline: the advantages of a training step, by named stages, and the stages themselves.

A stage takes the batch and the advantages so far, (T, K) float64 per trajectory and step, and returns new ones with
what it has to report; it never changes what it was given. The last table is spread over the sampled tokens. Which
stages there are, and in which order, is the configuration's `stages`: built-in names, names of the entry point group
`agentevolver.advantage_stages`, or `package.module:Stage`. A stage that cannot be found or made is refused when the
processor is made, not in the first training step.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from advantage_processor.adca import PRESETS, SPREADLESS, AdcaConfig, Credit, Steps, alpha_at, step_credit, to_tokens
from advantage_processor.ambiguity import BUCKETS, bucket, check_range, p_hat, scale
from advantage_processor.batch import CreditBatch, make_batch, pad_step_ids
from advantage_processor.diagnosis import bounded, checked_scales
from advantage_processor.grpo import (
    Singleton,
    anchor_ids,
    discounted_returns,
    outcome_advantages,
    shared,
    step_advantages,
)
from advantage_processor.metrics import advantage_metrics, anchor_metrics, credit_metrics, label_metrics
from advantage_processor.settings import AttributionSettings, StageSettings
from agentevolver.types import CreditParts, LabelStatus, StepCredit, Task, Trajectory

ENTRY_POINTS = "agentevolver.advantage_stages"


@dataclass(frozen=True, slots=True)
class StageContext:
    """Context that a stage is made with: the settings, and whether training mixes original and synthetic tasks."""

    settings: AttributionSettings
    hybrid_data: bool = False


class Parts(NamedTuple):
    """Parts (T, K) of advantages: the outcome's, the label's, and what comes after."""

    outcome: Tensor
    label: Tensor
    later: Tensor


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages (T, K) float64 per trajectory and step, of a stage or of the whole pipeline.

    `metrics` is what is to be reported; `rewards` (T, K) are step rewards, None where no stage made any. `parts` (T, K)
    are what a stage made its advantages of (`CreditParts`), None for a stage that changes those it was given.
    """

    advantages: Tensor
    metrics: dict[str, float] = field(default_factory=dict)
    rewards: Tensor | None = None
    parts: Parts | None = None

    def tokens(self, batch: CreditBatch) -> Tensor:
        """Return them (B, R) float32 per token: step advantages broadcast, 0 where nothing was sampled or counts."""
        return to_tokens(self.advantages, batch.row_trajectory, batch.step_ids)

    def credit(self, batch: CreditBatch) -> dict[str, StepCredit]:
        """Return the credit of each trajectory that counts, by its id."""
        rewards = None if self.rewards is None else self.rewards.tolist()
        advantages, parts = self.advantages.tolist(), [part.tolist() for part in self.parts or ()]
        found = {}
        for i, (valid, length) in enumerate(zip(batch.valid.tolist(), batch.lengths.tolist(), strict=True)):
            if valid:
                found[batch.trajectories[i].trajectory_id] = StepCredit(
                    _rounded(advantages[i][:length]),
                    None if rewards is None else _rounded(rewards[i][:length]),
                    CreditParts(*(_rounded(part[i][:length]) for part in parts)) if parts else None,
                )
        return found


def _rounded(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(value, 6) + 0.0 for value in values)  # no -0.0


class Stage(Protocol):
    """One stage: made once with the context and the options that stand beside its name, called every training step."""

    def __call__(self, batch: CreditBatch, advantages: Tensor) -> Advantages:
        """Return new advantages (T, K); 0 outside `batch.mask`."""


class OutcomeStage:
    """Every step gets its trajectory's group-relative outcome advantage (GRPO)."""

    def __init__(self, context: StageContext, *, singleton: Singleton = "score", norm_by_std: bool = True) -> None:
        if singleton not in ("score", "neutral"):
            raise ValueError(f"stage outcome: singleton is {singleton!r}, write score or neutral")
        self._singleton = singleton
        self._norm_by_std = norm_by_std

    def __call__(self, batch: CreditBatch, advantages: Tensor) -> Advantages:
        outcome = outcome_advantages(
            batch.outcomes, batch.groups, batch.valid, singleton=self._singleton, norm_by_std=self._norm_by_std
        )
        made = outcome[:, None] * batch.mask
        nothing = torch.zeros_like(made)
        return Advantages(made, parts=Parts(made, nothing, nothing))


class AttributionStage:
    """Step-level credit, by whoever `attributor` names, within the first `prm_steps` training steps.

    Labels and step rewards replace the advantages (ADCA-GRPO); anchor states add to them (GiGPO). With `enable: false`
    and
    `enable_adca_metric: true` the credit is reported and the advantages stay as they are.
    """

    def __init__(self, context: StageContext) -> None:
        self._settings = context.settings
        self._config = adca_config(context.settings)

    def __call__(self, batch: CreditBatch, advantages: Tensor) -> Advantages:
        if not self._settings.attributed_at(batch.step):
            return Advantages(advantages)
        credit = {"llm": self._from_labels, "env": self._from_rewards, "gigpo": self._from_anchors}[
            self._settings.attributor
        ]
        result = credit(batch, advantages)
        return result if self._settings.enable else Advantages(advantages, result.metrics)

    def _from_labels(self, batch: CreditBatch, advantages: Tensor) -> Advantages:
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
        return replace(result, metrics=report | result.metrics)

    def _from_rewards(self, batch: CreditBatch, advantages: Tensor) -> Advantages:
        rewards = batch.table([[float(step.reward) for step in trajectory.steps] for trajectory in batch.trajectories])
        finite = rewards.isfinite().all(1)
        given = (rewards != 0.0).any(1) & batch.valid & finite
        groups = int(batch.groups.max()) + 1 if len(batch.groups) else 0
        speaking = torch.zeros(groups, dtype=torch.bool).index_put_((batch.groups[given],), torch.tensor(True))
        labelled = speaking[batch.groups] & finite
        return self._fused(batch, rewards.nan_to_num(0.0, 0.0, 0.0), labelled)

    def _fused(self, batch: CreditBatch, scores: Tensor, labelled: Tensor) -> Advantages:
        adca = self._settings.adca_grpo
        alpha = alpha_at(
            batch.step,
            alpha=adca.alpha,
            alpha_min=adca.alpha_min,
            cosine=adca.alpha_cosine_decay_enable,
            total_steps=adca.total_steps,
            progress=adca.alpha_progress,
        )
        steps = Steps(scores, batch.lengths, batch.outcomes, batch.grades, batch.groups, labelled, batch.valid)
        credit: Credit = step_credit(steps, self._config, alpha)
        report = {
            "prm/alpha_base": adca.alpha,
            "prm/alpha_t": alpha,
            **credit_metrics(steps, credit, self._config, 1.0 if self._config.outcome == "only_prm" else alpha),
        }
        if adca.alpha_cosine_decay_enable:
            report["prm/alpha_progress"] = (
                min(batch.step / adca.total_steps, 1.0) if adca.alpha_progress is None else adca.alpha_progress
            )
        parts = Parts(credit.shares, credit.rewards - credit.shares, credit.advantages - credit.rewards)
        return Advantages(credit.advantages, report, credit.rewards, parts)

    def _from_anchors(self, batch: CreditBatch, advantages: Tensor) -> Advantages:
        options = self._settings.gigpo
        anchors = anchor_ids(
            [states(trajectory) for trajectory in batch.trajectories],
            batch.groups.tolist(),
            similarity=options.similarity,
        )
        if options.rewards == "env":
            rewards = batch.table(
                [[float(step.reward) for step in trajectory.steps] for trajectory in batch.trajectories]
            )
        else:
            last = torch.arange(batch.width) == batch.lengths[:, None] - 1
            rewards = batch.outcomes[:, None] * last
        returns = discounted_returns(rewards * batch.mask, options.gamma)
        own = step_advantages(returns, anchors, batch.valid, norm_by_std=options.norm_by_std)
        report = anchor_metrics(anchors, shared(anchors, batch.valid), own, batch.mask)
        gained = options.omega * own
        parts = Parts(advantages, gained, torch.zeros_like(gained))
        return Advantages(advantages + gained, report, rewards, parts)


class HybridScaleStage:
    """Scale of synthetic tasks' advantages where training mixes them with original ones.

    By `scale`, if that is given, else by what the task's metadata say (`advantage_scale`), else by 0.5 (paper 7.1.3).
    """

    def __init__(self, context: StageContext, *, scale: float | None = None) -> None:
        if scale is not None and scale < 0.0:
            raise ValueError(f"stage hybrid_scale: scale is {scale!r}, write a number from 0 on")
        self._scale = scale
        self._hybrid_data = context.hybrid_data

    def __call__(self, batch: CreditBatch, advantages: Tensor) -> Advantages:
        if not self._hybrid_data:
            return Advantages(advantages)
        tasks = [trajectory.task for trajectory in batch.trajectories]
        synthetic = torch.tensor([task.open_query for task in tasks], dtype=torch.bool)
        factor = torch.tensor([self._factor(task) for task in tasks], dtype=torch.float64)
        counted = int(batch.valid.sum())
        share = float((synthetic & batch.valid).sum()) / counted if counted else 0.0
        return Advantages(advantages * factor[:, None], {"advantage/synthetic_share": share})

    def _factor(self, task: Task) -> float:
        if not task.open_query:
            return 1.0
        return float(task.metadata.get("advantage_scale", 0.5)) if self._scale is None else self._scale


class AmbiguityStage:
    """Scales a task's advantages by how far its label is trusted (ADPO), from `s_min` at p = `lo` to 1 at p = `hi`.

    After the group's normalisation, which would cancel it: all rollouts of a group have one p. `adpo_p_hat` of the
    task's metadata is p; null leaves the advantages as they are, and raises PHatError where a task says none.
    """

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


class DiagnosisStage:
    """Scales the advantages of diagnosed steps by the kind of what went wrong,
    so that a failure teaches most where it happened (SEAL).

    Options are factors by kind (`task_manager.diagnose.KINDS`), on top of `SCALES`. Their deviations from the mean over
    the steps of the batch are then shrunk alike, so that they stay within 0.5..1.5 with the mean 1. Trajectories
    without a diagnosis take part with the factor 1.
    """

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


class BatchNormStage:
    """Batch norm of the advantages of all steps together, clamped (SeeUPO, arXiv 2602.06554).

    After `outcome` with `norm_by_std: false`, which leaves the outcome minus its group's mean. Every step counts once,
    as each turn is a sample there. A batch whose advantages are all equal becomes 0.
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


def _size(batch: CreditBatch, before: Tensor, after: Tensor) -> dict[str, float]:
    """Return the root mean square of the steps' advantages, before and after."""
    if not bool(batch.mask.any()):
        return {}
    return {
        f"adpo/advantage/{name}": float(values[batch.mask].square().mean().sqrt())
        for name, values in (("before", before), ("after", after))
    }


def adca_config(settings: AttributionSettings) -> AdcaConfig:
    """Return the variant of ADCA-GRPO that the settings describe."""
    adca, preset = settings.adca_grpo, PRESETS[settings.adca_grpo.preset]
    return AdcaConfig(
        scheme=adca.prm_scheme,
        standardise=adca.do_batch_norm,
        statistics="equal" if adca.equal_trajectory_weight else "pooled",
        sigma=preset.sigma,
        sigma_floor=preset.sigma_floor,
        base=adca.fix_base or preset.base,
        outcome=adca.orm_distribution,
        length_normalisation=adca.enable_length_normalization,
        consistent_scale=settings.consistent_scale,
        pos_unconsistent_scale=settings.pos_unconsistent_scale,
        neg_unconsistent_scale=settings.neg_unconsistent_scale,
        success_threshold=settings.success_threshold,
    )


def states(trajectory: Trajectory) -> list[str]:
    """Return the text that each step of a trajectory answered:
    "" at first (the opening is the group's own), then observations.

    What the policy said to others than the environment (a plan, a context decision) is compared with its like alone.
    """
    found, seen = [], ""
    for step in trajectory.steps:
        kind = step.kind
        found.append(seen if kind == "action" else f"{kind}: {seen}")
        if kind == "action":
            seen = step.observation
    return found


BUILT_IN: dict[str, Any] = {
    "outcome": OutcomeStage,
    "attribution": AttributionStage,
    "hybrid_scale": HybridScaleStage,
    "ambiguity": AmbiguityStage,
    "diagnosis": DiagnosisStage,
    "batch_norm": BatchNormStage,
}


class StageError(ValueError):
    """A stage that cannot be found or made; the message names it and says what to write."""


class Processor:
    """Credit pipeline: token advantages of a training step's trajectories;
    stateless between steps but for what a stage of yours keeps.

    Args:
        settings: the section `attribution_driven_credit_assignment`.
        hybrid_data: whether training mixes original and synthetic tasks.

    Raises:
        StageError: for a stage that cannot be found or made.
    """

    def __init__(self, settings: AttributionSettings, *, hybrid_data: bool = False) -> None:
        context = StageContext(settings, hybrid_data)
        self._stages: list[tuple[str, Stage]] = [(stage.use, make_stage(stage, context)) for stage in settings.stages]

    def process(self, batch: CreditBatch) -> Advantages:
        """Run the stages and return the advantages of every step;
        raises StageError when a stage breaks its contract."""
        began = time.perf_counter()
        advantages = torch.zeros(len(batch.trajectories), batch.width, dtype=torch.float64)
        rewards: Tensor | None = None
        parts: Parts | None = None
        metrics: dict[str, float] = {}
        for name, stage in self._stages:
            result = stage(batch, advantages)
            _check(name, result.advantages, batch)
            advantages = result.advantages
            rewards = result.rewards if result.rewards is not None else rewards
            parts = result.parts if result.parts is not None else parts
            metrics |= result.metrics
        metrics |= advantage_metrics(advantages, batch.mask)
        metrics["timing_s/advantage_processor"] = time.perf_counter() - began
        return Advantages(advantages, metrics, rewards, parts)


def assign(
    processor: Processor,
    step: int,
    trajectories: Sequence[Trajectory],
    keys: Sequence[str],
    step_ids: Sequence[Sequence[int]],
) -> tuple[list[Tensor], dict[str, float]]:
    """Return the advantages of rows that are trained on, one float32 tensor (R_i) a row, and the pipeline's metrics.

    Step advantages are broadcast to the tokens of their steps; each trajectory that counts gets its `credit`.

    Args:
        processor: the pipeline.
        step: the training step, from 1.
        trajectories: the step's, failed ones too.
        keys: `{uid}_{session}_{index}` of each row.
        step_ids: per row, the step of each response token, -1 where nothing was sampled.

    Raises:
        ValueError: a row belongs to no trajectory.
        StageError: a stage broke its contract.
    """
    width = max((len(row) for row in step_ids), default=0)
    batch = make_batch(step, trajectories, keys, pad_step_ids(step_ids, width))
    result = processor.process(batch)
    credit = result.credit(batch)
    for trajectory in trajectories:
        trajectory.credit = credit.get(trajectory.trajectory_id)
    return [row[: len(ids)] for row, ids in zip(result.tokens(batch), step_ids, strict=True)], result.metrics


def make_stage(settings: StageSettings, context: StageContext) -> Stage:
    """Return the stage that an entry of `stages` names; raises StageError."""
    factory = BUILT_IN.get(settings.use) or _elsewhere(settings.use)
    try:
        stage: Stage = factory(context, **settings.options)
    except (TypeError, ValueError) as error:
        raise StageError(
            f"stage {settings.use!r} cannot be made with the options {settings.options}: {error}"
        ) from error
    return stage


def _elsewhere(name: str) -> Any:
    """Return the stage behind an entry point's name or `package.module:Stage`."""
    if ":" not in name:
        found = [point for point in entry_points(group=ENTRY_POINTS) if point.name == name]
        if not found:
            known = sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINTS))})
            raise StageError(f"stage {name!r} is not known: write one of {', '.join(known)}, or package.module:Stage")
        return found[0].load()
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise StageError(f"stage {name!r} cannot be imported: {error}") from error


def _check(name: str, advantages: Tensor, batch: CreditBatch) -> None:
    expected = (len(batch.trajectories), batch.width)
    if tuple(advantages.shape) != expected:
        raise StageError(f"stage {name!r} returned advantages of shape {tuple(advantages.shape)}, expected {expected}")
    if not bool(advantages.isfinite().all()):
        raise StageError(f"stage {name!r} returned an advantage that is not a finite number")
    if bool((advantages != 0)[~batch.mask].any()):
        raise StageError(f"stage {name!r} returned an advantage for a step that does not count, multiply by batch.mask")

"""Advantage pipeline: named stages that compute the advantages of a training step.

A stage takes the batch and the advantages so far, (T, K) float64, and returns new ones. A name in `stages` is built in,
an entry point of the group `agentevolver.advantage_stages`, registered by a recipe, or `package.module:Stage`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from advantage_processor.adca import PRESETS, AdcaConfig, Credit, Steps, alpha_at, step_credit, to_tokens
from advantage_processor.batch import CreditBatch, make_batch, pad_step_ids
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
from agentevolver.utils import recipes
from agentevolver.utils.names import load_named

ENTRY_POINTS = "agentevolver.advantage_stages"


@dataclass(frozen=True, slots=True)
class StageContext:
    """Constructor input of a stage. `hybrid_data`: training mixes original and synthetic tasks."""

    settings: AttributionSettings
    hybrid_data: bool = False


class AdvantageParts(NamedTuple):
    """Parts (T, K) of advantages: the outcome's, the label's, and what later steps contribute."""

    outcome: Tensor
    label: Tensor
    later: Tensor


Parts = AdvantageParts  # its documented name


@dataclass(frozen=True, slots=True)
class Advantages:
    """Result of a stage, or of the whole pipeline: `advantages` (T, K) float64, by trajectory and step.

    `rewards` (T, K) are step rewards, or None if there are none. `parts` is None if the stage only modifies advantages.
    """

    advantages: Tensor
    metrics: dict[str, float] = field(default_factory=dict)
    rewards: Tensor | None = None
    parts: AdvantageParts | None = None

    def tokens(self, batch: CreditBatch) -> Tensor:
        """Return token advantages (B, R), 0 where nothing was sampled."""
        return to_tokens(self.advantages, batch.row_trajectory, batch.step_ids)

    def credit(self, batch: CreditBatch) -> dict[str, StepCredit]:
        """Return the step credit of each valid trajectory by id."""
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
    """A stage of the pipeline, constructed once with the context and its options."""

    def __call__(self, batch: CreditBatch, advantages: Tensor) -> Advantages:
        """Return new advantages (T, K), which are 0 outside `batch.mask`. Must not change its arguments."""


class OutcomeStage:
    """Gives every step its trajectory's outcome advantage (GRPO)."""

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
        return Advantages(made, parts=AdvantageParts(made, nothing, nothing))


class AttributionStage:
    """Step-level credit from labels or rewards (ADCA-GRPO) or from anchor states (GiGPO), in the first `prm_steps`
    steps.

    ADCA-GRPO replaces the advantages, GiGPO adds to them. With `enable: false` and `enable_adca_metric: true`, credit
    is reported and the advantages stay.
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
        # A group without any reward has nothing to standardise: it keeps outcome credit only.
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
        )
        steps = Steps(scores, batch.lengths, batch.outcomes, batch.grades, batch.groups, labelled, batch.valid)
        credit: Credit = step_credit(steps, self._config, alpha)
        report = {
            "prm/alpha_base": adca.alpha,
            "prm/alpha_t": alpha,
            **credit_metrics(steps, credit, self._config, 1.0 if self._config.outcome == "only_prm" else alpha),
        }
        if adca.alpha_cosine_decay_enable:
            report["prm/alpha_progress"] = min(batch.step / adca.total_steps, 1.0)
        parts = AdvantageParts(credit.shares, credit.rewards - credit.shares, credit.advantages - credit.rewards)
        return Advantages(credit.advantages, report, credit.rewards, parts)

    def _from_anchors(self, batch: CreditBatch, advantages: Tensor) -> Advantages:
        options = self._settings.gigpo
        anchors = anchor_ids([states(trajectory) for trajectory in batch.trajectories], batch.groups.tolist())
        if options.rewards == "env":
            rewards = batch.table(
                [[float(step.reward) for step in trajectory.steps] for trajectory in batch.trajectories]
            )
        else:
            last = torch.arange(batch.width) == batch.lengths[:, None] - 1
            rewards = batch.outcomes[:, None] * last
        returns = discounted_returns(rewards * batch.mask, options.gamma)
        own = step_advantages(returns, anchors, batch.valid)
        report = anchor_metrics(anchors, shared(anchors, batch.valid), own, batch.mask)
        gained = options.omega * own
        parts = AdvantageParts(advantages, gained, torch.zeros_like(gained))
        return Advantages(advantages + gained, report, rewards, parts)


class HybridScaleStage:
    """Scales the advantages of synthetic tasks where training mixes both kinds.

    By `scale`, else by the task's metadata (`advantage_scale`), else by 0.5 (paper, 7.1.3).
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


def adca_config(settings: AttributionSettings) -> AdcaConfig:
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
    """Return each step's anchor: the observation it answered, "" at first because the group shares its opening."""
    found, seen = [], ""
    for step in trajectory.steps:
        kind = step.kind
        # Plans and context decisions are comparable only with their own kind.
        found.append(seen if kind == "action" else f"{kind}: {seen}")
        if kind == "action":
            seen = step.observation
    return found


BUILT_IN: dict[str, Any] = {
    "outcome": OutcomeStage,
    "attribution": AttributionStage,
    "hybrid_scale": HybridScaleStage,
}


class StageError(ValueError):
    """A stage cannot be found or constructed, or broke its contract."""


class Processor:
    """Runs the stages on each training step. Raises StageError if a stage cannot be found or made."""

    def __init__(self, settings: AttributionSettings, *, hybrid_data: bool = False) -> None:
        context = StageContext(settings, hybrid_data)
        first = next(iter(settings.stages), None)
        if first is not None and getattr(_factory(first.use), "rescales", False):
            raise StageError(
                f"the first stage is {first.use}, which only scales the advantages of earlier stages: write "
                "outcome before it"
            )
        self._stages: list[tuple[str, Stage]] = [(stage.use, make_stage(stage, context)) for stage in settings.stages]

    def process(self, batch: CreditBatch) -> Advantages:
        """Return the advantages of every step; raises StageError if a stage breaks its contract."""
        began = time.perf_counter()
        advantages = torch.zeros(len(batch.trajectories), batch.width, dtype=torch.float64)
        rewards: Tensor | None = None
        parts: AdvantageParts | None = None
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
    """Return the advantages of each row (R_i) and metrics; sets the `credit` of each valid trajectory.

    Args:
        trajectories: the training step's, failed ones included.
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
    """Construct a stage from its entry in `stages`; raises StageError."""
    try:
        stage: Stage = _factory(settings.use)(context, **settings.options)
    except (TypeError, ValueError) as error:
        raise StageError(
            f"stage {settings.use!r} cannot be made with the options {settings.options}: {error}"
        ) from error
    return stage


def _factory(name: str) -> Any:
    points = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    try:
        return load_named(name, {**points, **recipes.stages("advantage"), **BUILT_IN})
    except ValueError as error:
        raise StageError(f"stage {error}") from error


def _check(name: str, advantages: Tensor, batch: CreditBatch) -> None:
    expected = (len(batch.trajectories), batch.width)
    if tuple(advantages.shape) != expected:
        raise StageError(f"stage {name!r} returned advantages of shape {tuple(advantages.shape)}, expected {expected}")
    if not bool(advantages.isfinite().all()):
        raise StageError(f"stage {name!r} returned an advantage that is not a finite number")
    if bool((advantages != 0)[~batch.mask].any()):
        raise StageError(f"stage {name!r} returned an advantage for a step outside batch.mask: multiply by it")

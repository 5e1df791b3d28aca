"""Advantages of a training step, by a pipeline of named stages.

The stages work on one number per trajectory and step; their last table is spread over the sampled tokens. Which stages
there are, and in which order, is the configuration's `stages`: built-in names, names of the entry point group
`agentevolver.advantage_stages`, or `package.module:Stage`. A stage that cannot be found or made is refused when the
processor is made, not in the first training step.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import torch
from torch import Tensor

from advantage_processor.adca import to_tokens
from advantage_processor.batch import CreditBatch
from advantage_processor.metrics import advantage_metrics
from advantage_processor.settings import AttributionSettings, StageSettings
from advantage_processor.stages import AttributionStage, HybridScaleStage, OutcomeStage, Stage, StageContext

ENTRY_POINTS = "agentevolver.advantage_stages"
BUILT_IN: dict[str, Any] = {"outcome": OutcomeStage, "attribution": AttributionStage, "hybrid_scale": HybridScaleStage}


class StageError(ValueError):
    """A stage that cannot be found or made; the message names it and says what to write."""


@dataclass(frozen=True, slots=True)
class CreditResult:
    """`advantages` (B, R) float32, 0 on every token that was not sampled or does not count; `per_step` (T, K) what they
    were made of; `rewards` (T, K) step rewards, None when no stage made any; `metrics` of all stages."""

    advantages: Tensor
    per_step: Tensor
    rewards: Tensor | None
    metrics: dict[str, float]

    def records(self, batch: CreditBatch) -> dict[str, dict[str, list[float]]]:
        """Return `{"advantages", "step_rewards"}` of each trajectory that counts, by its id, for its record (key
        `credit`)."""
        records = {}
        tables = {"advantages": self.per_step.tolist()} | (
            {"step_rewards": self.rewards.tolist()} if self.rewards is not None else {}
        )
        for i, (trajectory, valid, length) in enumerate(
            zip(batch.trajectories, batch.valid.tolist(), batch.lengths.tolist(), strict=True)
        ):
            if valid:
                records[trajectory["trajectory_id"]] = {
                    name: [round(x, 6) for x in table[i][:length]] for name, table in tables.items()
                }
        return records


class Processor:
    """Makes token advantages of a training step's trajectories; stateless between steps but for what a stage of yours
    keeps.

    Args:
        settings: the section `attribution_driven_credit_assignment`.
        hybrid_data: whether training mixes original and synthetic tasks.

    Raises:
        StageError: for a stage that cannot be found or made.
    """

    def __init__(self, settings: AttributionSettings, *, hybrid_data: bool = False) -> None:
        context = StageContext(settings, hybrid_data)
        self._stages: list[tuple[str, Stage]] = [(stage.use, make_stage(stage, context)) for stage in settings.stages]

    def process(self, batch: CreditBatch) -> CreditResult:
        """Run the stages and return the advantages of every token; raises StageError when a stage breaks its
        contract."""
        began = time.perf_counter()
        advantages = torch.zeros(len(batch.trajectories), batch.width, dtype=torch.float64)
        rewards: Tensor | None = None
        metrics: dict[str, float] = {}
        for name, stage in self._stages:
            result = stage(batch, advantages)
            _check(name, result.advantages, batch)
            advantages = result.advantages
            rewards = result.rewards if result.rewards is not None else rewards
            metrics |= result.metrics
        metrics |= advantage_metrics(advantages, batch.mask)
        tokens = to_tokens(advantages, batch.row_trajectory, batch.step_ids)
        metrics["timing_s/advantage_processor"] = time.perf_counter() - began
        return CreditResult(tokens, advantages, rewards, metrics)


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

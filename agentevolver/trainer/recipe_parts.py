"""Trainer parts that recipes add to a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from agentevolver.config.schema import Settings
from agentevolver.trainer.parts import TrainerPart
from agentevolver.utils import recipes

if TYPE_CHECKING:  # a recipe's checks, beside its parts, are read in a dry run, which imports no torch
    from agentevolver.trainer.tasks import TrainingTasks


@dataclass(frozen=True)
class PartContext:
    """Inputs for a recipe's parts."""

    settings: Settings
    config: DictConfig
    """verl's configuration, with ours in `agentevolver`."""
    tasks: TrainingTasks | None
    """What epochs are drawn from; None if verl's own loader draws them."""


def recipe_parts(context: PartContext) -> list[TrainerPart]:
    return [part for parts in recipes.called("parts", context) for part in parts]

"""SeeUPO's trainer part, and the checks of its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from agentevolver.config.asynchronous import check_synchronous
from agentevolver.config.loss_modes import ACTOR, OF_SEQUENCES
from agentevolver.config.schema import Settings
from agentevolver.recipes.seeupo.settings import SeeupoSettings
from agentevolver.trainer.parts import TrainerPart
from agentevolver.utils.errors import ConfigError

if TYPE_CHECKING:
    from agentevolver.trainer.recipe_parts import PartContext  # imports torch


def settings_of(settings: Settings) -> SeeupoSettings:
    section = settings.recipe("seeupo")
    assert isinstance(section, SeeupoSettings)
    return section


def parts(context: PartContext) -> list[TrainerPart]:
    from agentevolver.recipes.seeupo.update import TurnUpdates

    section = settings_of(context.settings)
    return [] if section.order is None else [TurnUpdates(section.clip)]


def check(settings: Settings, config: DictConfig, layers: Any) -> None:
    if settings_of(settings).order is None:
        return
    mode = OmegaConf.select(config, f"{ACTOR}.policy_loss.loss_mode")
    if mode not in OF_SEQUENCES:
        raise ConfigError(
            f"recipes.seeupo.order multiplies ratios of whole turns, {ACTOR}.policy_loss.loss_mode = {mode} has one a "
            f"token: write {' or '.join(OF_SEQUENCES)}, or recipes.seeupo.order: null"
        )
    check_synchronous(config, "recipes.seeupo.order", "its ratios are to the one policy that sampled")

"""Checks of a configuration with self-play."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from agentevolver.config.asynchronous import check_synchronous
from agentevolver.config.schema import Settings, place_of
from agentevolver.recipes.self_play.settings import CHECKPOINT, settings_of
from agentevolver.utils.errors import ConfigError

_SAVED = "actor_rollout_ref.actor.checkpoint.save_contents"


def env_params(settings: Settings, env_type: str) -> dict[str, Any]:
    """Return the parameter that names the default opponent, the policy `start`, for episodes outside training steps."""
    section = settings_of(settings)
    return {CHECKPOINT: section.start} if section.enable and env_type == section.env_type else {}


def check(settings: Settings, config: DictConfig, layers: Any) -> None:
    section = settings_of(settings)
    if not section.enable:
        return
    check_synchronous(config, "recipes.self_play.enable", "a step has one opponent")
    if section.env_type not in settings.env_service.env_types:
        raise ConfigError(
            f"recipes.self_play.env_type = {section.env_type} is not one of the run's environments "
            f"({', '.join(settings.env_service.env_types)})"
        )
    if settings.rollout.sparse:
        raise ConfigError(
            f"{place_of('rollout.sparse')} = true: a draw would count as a loss, in the ratings too: set it to false"
        )
    if settings.trainer.weights is not None:
        raise ConfigError("trainer.weights: self-play begins with actor_rollout_ref.model.path, name the weights there")
    save_freq: Any = OmegaConf.select(config, "trainer.save_freq")
    if not isinstance(save_freq, int) or save_freq < 1 or section.every % save_freq:
        raise ConfigError(
            f"recipes.self_play.every = {section.every} must be a multiple of trainer.save_freq = {save_freq}: only "
            "saved checkpoints can join the pool"
        )
    if "hf_model" not in (OmegaConf.select(config, _SAVED) or ()):
        raise ConfigError(
            f"{_SAVED} must name hf_model beside the others ([model, optimizer, extra, hf_model]): the pool is made "
            "of it"
        )

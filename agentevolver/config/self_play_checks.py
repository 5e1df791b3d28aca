"""Refusals of a configuration with self-play."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from agentevolver.config.schema import Settings, place_of
from agentevolver.errors import ConfigError

_SAVED = "actor_rollout_ref.actor.checkpoint.save_contents"


def check_self_play(settings: Settings, config: DictConfig) -> None:
    """Refuse what does not go together with `self_play.enable`; nothing without it.

    Raises:
        ConfigError: with one line that says what to change.
    """
    section = settings.self_play
    if not section.enable:
        return
    if settings.coevolve.enable:
        raise ConfigError(
            "self_play.enable and coevolve.enable: one server of frozen policies serves one of them; remove one"
        )
    if section.env_type not in settings.env_service.env_types:
        raise ConfigError(
            f"self_play.env_type = {section.env_type} is not one of the run's environments "
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
            f"self_play.every = {section.every} must be a multiple of trainer.save_freq = {save_freq}: a checkpoint "
            "that is saved joins the pool"
        )
    if "hf_model" not in (OmegaConf.select(config, _SAVED) or ()):
        raise ConfigError(
            f"{_SAVED} must name hf_model beside the others ([model, optimizer, extra, hf_model]): the pool is made "
            "of it"
        )

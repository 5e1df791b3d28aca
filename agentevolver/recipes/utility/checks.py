"""Checks of a configuration with the ranking `utility`."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig
from pydantic import ValidationError

from agentevolver.config.schema import Settings
from agentevolver.recipes.utility.settings import UtilityOptions
from agentevolver.utils.errors import ConfigError

NAME = "utility"


def check(settings: Settings, config: DictConfig, layers: Any) -> None:
    section = settings.exp_manager
    if section.ranking is None or section.ranking.use != NAME:
        return
    try:
        UtilityOptions.model_validate(section.ranking.options)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"exp_manager.ranking.{place}: {first['msg']}, found {first['input']!r}") from error
    if section.train_rollout_mode != "mixed":
        raise ConfigError(
            "exp_manager.ranking = utility compares the halves of half-guided groups: set "
            f"exp_manager.train_rollout_mode, now {section.train_rollout_mode}, to mixed"
        )

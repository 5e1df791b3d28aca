"""Checks of the closed loop's configuration, and the model roles that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig

from agentevolver.config.asynchronous import check_synchronous
from agentevolver.config.schema import Settings
from agentevolver.llm.settings import Role
from agentevolver.recipes.seal.settings import settings_of
from agentevolver.utils.errors import ConfigError


def roles(settings: Settings) -> Sequence[Role]:
    return settings.task_manager.roles_of_making if settings_of(settings).enable else ()


def check(settings: Settings, config: DictConfig, layers: Any) -> None:
    section, tasks = settings_of(settings), settings.task_manager
    if not section.enable:
        return
    check_synchronous(config, "recipes.seal.enable", "it makes tasks of the step before")
    if not tasks.mixture.needs_synthetic:
        raise ConfigError(
            "recipes.seal makes synthetic tasks, but none is trained on: set "
            "task_manager.mixture.synthetic_data_ratio above 0"
        )
    if tasks.curriculum.synthesize_every_epochs > 0:
        raise ConfigError(
            "recipes.seal and task_manager.curriculum.synthesize_every_epochs both make rounds of new tasks: set the "
            "latter to 0"
        )

"""Check a run's tasks before it starts: each needs `adpo_p_hat`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentevolver.config.schema import Settings
from agentevolver.recipes.adpo.ambiguity import PHatError, p_hat
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError


def check_tasks(config: Any, settings: Settings, tasks: Sequence[Task]) -> None:
    used = [stage.use for stage in (*settings.attribution.stages, *settings.trainer.row_clips)]
    try:
        for task in tasks if "ambiguity" in used else ():
            p_hat(task)
    except PHatError as error:
        raise ConfigError(str(error)) from error

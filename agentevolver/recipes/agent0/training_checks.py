"""Checks of a round's two trainings, made before the first one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentevolver.config.overlay import check_overlay
from agentevolver.config.schema import Settings
from agentevolver.recipes.agent0.overlays import proposer_overlay, solver_overlay
from agentevolver.recipes.agent0.settings import settings_of
from agentevolver.trainer.checkpoints import model_difference
from agentevolver.utils.errors import ConfigError


def check_trainings(config: Mapping[str, Any], settings: Settings) -> None:
    """Refuse a configuration whose trainings would be refused hours later, in the round that begins them; raises
    ConfigError."""
    section = settings_of(settings)
    folder, start = settings.experiment_dir / "round_1", str(config["actor_rollout_ref"]["model"]["path"])
    solver = solver_overlay(config, settings, folder / "solver", tasks=section.pool, start=start)
    check_overlay(config, solver, "recipes.agent0.executor")
    if section.proposer.trained:
        tasks = section.proposer.steps * section.proposer.batch_size
        proposer = proposer_overlay(
            config, settings, folder / "proposer", tasks=tasks, start=section.proposer.path or start, executor=start
        )
        check_overlay(config, proposer, "recipes.agent0.proposer.override")
    if (path := section.proposer.path) is not None:
        try:
            difference = model_difference(start, path)
        except ValueError as error:
            raise ConfigError(f"recipes.agent0.proposer.path = {path}: {error}") from error
        if difference is not None:
            raise ConfigError(
                f"recipes.agent0.proposer.path = {path} is of another architecture than {start}, and one engine plays "
                f"both: {difference}"
            )

"""Checks of a round's two trainings, made before the first one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentevolver.coevolve.overlays import proposer_overlay, solver_overlay
from agentevolver.coevolve.player.client import PlayerRefused
from agentevolver.coevolve.player.weights import Model, local
from agentevolver.config.overlay import check_overlay
from agentevolver.config.schema import Settings
from agentevolver.errors import ConfigError
from task_manager.profile import ProfileError, profile_for


def check_trainings(config: Mapping[str, Any], settings: Settings) -> None:
    """Refuse a configuration whose trainings would be refused hours later, in the round that begins them.

    Args:
        config: the resolved configuration, a plain tree.
        settings: the typed view of it.

    Raises:
        ConfigError: with one line that says what to change.
    """
    section = settings.coevolve
    folder, start = settings.experiment_dir / "round_1", str(config["actor_rollout_ref"]["model"]["path"])
    solver = solver_overlay(config, settings, folder / "solver", tasks=section.pool, start=start)
    check_overlay(config, solver, "coevolve.executor.override")
    if section.proposer.by == "policy" and section.proposer.trained:
        tasks = section.proposer.steps * section.proposer.batch_size
        proposer = proposer_overlay(
            config, settings, folder / "proposer", tasks=tasks, start=section.proposer.path or start, executor=start
        )
        check_overlay(config, proposer, "coevolve.proposer.override")
    if section.proposer.by == "explorer":
        try:
            profile_for(settings.world.env_type, settings.task_manager.env_profile)
        except ProfileError as error:
            raise ConfigError(f"task_manager.env_profile: {error}") from error
    if section.proposer.path is not None:
        _check_policy(section.proposer.path, start)


def _check_policy(proposer: str, executor: str) -> None:
    """Refuse a proposer's policy that the engine of the frozen policies, which plays both, could not take."""
    try:
        Model(local(executor, fetch=True)).check(local(proposer, fetch=True))
    except PlayerRefused as error:
        raise ConfigError(f"coevolve.proposer.path = {proposer}: one engine plays both agents: {error}") from error

"""What is refused of a configuration before its first round, both trainings' included."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentevolver.coevolve.overlays import proposer_overlay, solver_overlay
from agentevolver.config.overlay import check_overlay
from agentevolver.config.schema import Settings
from agentevolver.errors import ConfigError


def check_rounds(config: Mapping[str, Any], settings: Settings) -> None:
    """Refuse a configuration whose rounds could not be carried out.

    Args:
        config: the resolved configuration, a plain tree.
        settings: the typed view of it.

    Raises:
        ConfigError: with one line that says what to change.
    """
    section, sizes, service = settings.coevolve, settings.sizes, settings.env_service
    if service.is_mixture:
        raise ConfigError(
            f"env_service.env_type names {len(service.env_types)} environments: proposals are for one world"
        )
    if settings.cold_start.files:
        raise ConfigError(
            "cold_start.files: a round begins with the weights of the one before; make the cold start in a run of its "
            "own, and name what it made as actor_rollout_ref.model.path"
        )
    if section.min_pool < sizes.train_batch_size:
        raise ConfigError(
            f"coevolve.min_pool = {section.min_pool} is less than data.train_batch_size = {sizes.train_batch_size}: a "
            "round that is trained on has a batch of tasks at least"
        )
    if section.shared_weights and section.proposer.path is not None:
        raise ConfigError("coevolve.shared_weights = true: there is one policy, so coevolve.proposer.path must be null")
    if int(config["trainer"]["save_freq"]) < 1:
        raise ConfigError(
            f"trainer.save_freq = {config['trainer']['save_freq']}: a training that saves nothing leaves the next "
            "round nothing; write 1 or more"
        )
    folder = Path("checked")
    solver = solver_overlay(config, settings, folder, tasks=section.pool, start="checked")
    check_overlay(config, solver, "coevolve.executor.override")
    if section.proposer.by == "policy" and section.proposer.trained:
        tasks = section.proposer.steps * section.proposer.batch_size
        proposer = proposer_overlay(config, settings, folder, tasks=tasks, start="checked", executor="checked")
        check_overlay(config, proposer, "coevolve.proposer.override")

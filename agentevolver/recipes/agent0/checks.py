"""Checks of the configuration of rounds, done where its layers are composed.

The trainings of a round have configurations of their own, which are derived from the checked one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from agentevolver.config.asynchronous import check_synchronous
from agentevolver.config.loss_modes import inert_clips
from agentevolver.config.schema import Settings, place_of
from agentevolver.config.trees import leaves
from agentevolver.recipes.agent0.settings import PROPOSE_ENV, WORLDS, Agent0Settings, settings_of
from agentevolver.utils.errors import ConfigError

Layers = Sequence[tuple[Mapping[str, Any], str]]
"""Layers of the configuration, each with its source."""

# Keys that rounds set, and what to write instead.
DECIDED = {
    "trainer.total_training_steps": "write recipes.agent0.executor.steps and recipes.agent0.proposer.steps",
    "trainer.total_epochs": "write recipes.agent0.executor.steps and recipes.agent0.proposer.steps",
    "trainer.test_freq": "a round ends with an evaluation of recipes.agent0.executor.eval_n episodes a task; remove it",
    "trainer.val_before_train": "the base is evaluated before the first round; remove it",
    "trainer.resume_mode": "rounds resume from coevolve.json; remove it, or give another experiment_name",
    "trainer.resume_from_path": "rounds begin with actor_rollout_ref.model.path; remove it",
    "data.train_filter": "tasks are proposed; remove it",
    "actor_rollout_ref.rollout.val_kwargs.n": "write recipes.agent0.executor.eval_n",
}


def check(settings: Settings, config: DictConfig, layers: Layers) -> None:
    """Raise ConfigError for settings that rounds cannot be combined with, and for keys without effect.

    `layers` is () for the configurations of trainings.
    """
    if not layers or not settings_of(settings).enable:
        return
    check_synchronous(config, "recipes.agent0.enable", "its trainings are synchronous")
    _check_world(settings)
    _check_parts(settings, config)
    _check_policies(settings)
    _check_written(settings_of(settings), layers)


def warnings(settings: Settings, config: DictConfig) -> list[str]:
    """Return one line for each setting that is allowed but likely to fail; `config` is the composed tree."""
    section, found = settings_of(settings), []
    if not section.enable:
        return []
    if section.gate == "vote":
        found.append(
            "recipes.agent0.gate = vote: labels are the executor's own most frequent answers, right or not. Measured "
            "on calc's forerunner: success .50, .68, .56, .52, .34 over four rounds, labels right .90, .37, .13, .09. "
            "executed holds, where proposals carry a program"
        )
    steps = settings.sizes.train_batch_size // settings.sizes.ppo_mini_batch_size
    inert = inert_clips(steps * int(config.actor_rollout_ref.actor.ppo_epochs))
    if section.adpo.enable and section.adpo.bonus and inert is not None:
        found.append(f"recipes.agent0.adpo.bonus widens the upper clip: {inert}")
    return found


def _check_world(settings: Settings) -> None:
    named, gate = settings.env_service.env_types, settings_of(settings).gate
    if len(named) > 1:
        raise ConfigError(
            f"env_service.env_type names {', '.join(named)}, and recipes.agent0 proposes tasks for one world: name one "
            f"of {', '.join(WORLDS)}"
        )
    (world,) = named
    if world in WORLDS:
        return
    if world == PROPOSE_ENV:
        raise ConfigError(
            f"env_service.env_type = {PROPOSE_ENV} is added automatically: name the world that proposals are for "
            f"({', '.join(WORLDS)})"
        )
    why = "runs no reference program, which recipes.agent0.gate = executed needs, and " if gate == "executed" else ""
    raise ConfigError(
        f"env_service.env_type = {world} {why}takes no proposed problems: recipes.agent0 wants one of "
        f"{', '.join(WORLDS)}"
    )


def _check_parts(settings: Settings, config: DictConfig) -> None:
    section, rollout = settings.task_manager, settings.rollout
    if section.mixture.needs_synthetic or section.curriculum.enable:
        key = "mixture.synthetic_data_ratio" if section.mixture.needs_synthetic else "curriculum.enable"
        raise ConfigError(
            f"task_manager.{key}: in rounds all tasks come from proposals, and the gate selects them; remove it"
        )
    if settings.exp_manager.guides or settings.exp_manager.distils or settings.exp_manager.scout.split:
        raise ConfigError(
            "exp_manager guides or distils, but the executor is measured without guidance, so training and measuring "
            "would differ; remove these keys"
        )
    if settings.cold_start.files:
        raise ConfigError(
            "cold_start.files: a round begins with the weights of the previous round; make the cold start in a "
            "separate run, and set actor_rollout_ref.model.path to its model"
        )
    if rollout.agent_function is not None or rollout.agent_command is not None:
        raise ConfigError(
            f"{place_of('rollout')} names an agent of your own, but frozen policies play by the built-in flows only: "
            "remove it"
        )
    if OmegaConf.select(config, "trainer.val_only"):
        raise ConfigError(
            "trainer.val_only = true: rounds train; to evaluate a checkpoint, write recipes.agent0.enable=false and "
            "trainer.resume_mode=resume_path"
        )
    if OmegaConf.select(config, "actor_rollout_ref.model.lora_rank") or OmegaConf.select(
        config, "actor_rollout_ref.model.lora.rank"
    ):
        raise ConfigError(
            "actor_rollout_ref.model.lora_rank: the frozen policies' server plays whole weights, not adapters; set "
            "it to 0"
        )
    if config.trainer.save_freq < 1:
        raise ConfigError(
            f"trainer.save_freq = {config.trainer.save_freq}: the next stage needs a checkpoint of the training; "
            "write 1 or more"
        )


def _check_policies(settings: Settings) -> None:
    section, sizes = settings_of(settings), settings.sizes
    if section.min_pool < sizes.train_batch_size:
        raise ConfigError(
            f"recipes.agent0.min_pool = {section.min_pool} is less than data.train_batch_size = "
            f"{sizes.train_batch_size}: a trained round needs at least one batch of tasks"
        )
    if section.draws < section.pool:
        raise ConfigError(
            f"recipes.agent0.draws = {section.draws} proposals cannot give recipes.agent0.pool = {section.pool} tasks: "
            "set the former higher"
        )


def _check_written(section: Agent0Settings, layers: Layers) -> None:
    for key, source, value in _written(layers):
        if (instead := _under(key, DECIDED)) is not None and value is not None:
            raise ConfigError(f"{source}: `{key}` has no effect in rounds: {instead}")
        if not section.adpo.enable and key in ("recipes.agent0.adpo.s_min", "recipes.agent0.adpo.bonus"):
            raise ConfigError(f"{source}: `{key}` has no effect while recipes.agent0.adpo.enable = false: remove it")


def _under(key: str, told: Mapping[str, str]) -> str | None:
    return next((text for name, text in told.items() if key == name or key.startswith(f"{name}.")), None)


def _written(layers: Layers) -> Iterator[tuple[str, str, Any]]:
    for content, source in layers:
        for key, value in leaves(content):
            yield key, source, value

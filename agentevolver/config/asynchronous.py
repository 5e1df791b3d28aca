"""Asynchronous trainer modes (`trainer.v1.trainer_mode`), in which rollouts continue during updates, and their checks.

Imports no torch, so a mistake is reported before anything is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from agentevolver.config.schema import Settings
from agentevolver.config.verl_keys import COLOCATED, MODE, SEPARATE, SYNC
from agentevolver.llm.settings import POLICY
from agentevolver.utils.errors import ConfigError

# Our mode -> verl's mode, which is also the name of its section in `trainer.v1`.
VERLS = {SYNC: "sync", COLOCATED: "colocate_async", SEPARATE: "separate_async"}
# Steps after which a group is forgotten if its age is unbounded.
UNBOUNDED_STEPS = 64


def goes_on(config: DictConfig) -> bool:
    """Whether rollouts continue during updates."""
    return str(OmegaConf.select(config, MODE)) in (COLOCATED, SEPARATE)


def steps_kept(config: DictConfig) -> int:
    """Return the maximum number of training steps that a group's rollouts may span."""
    if not goes_on(config):
        return 1
    bound = OmegaConf.select(config, "trainer.v1.sampler.max_off_policy_threshold")
    waits = OmegaConf.select(config, "trainer.v1.sampler.max_off_policy_strategy") == "wait"
    # Without "wait", a group that is too old is dropped once it is finished, which may be many steps later.
    return UNBOUNDED_STEPS if bound is None or not waits else int(bound) + 1


def check_synchronous(config: DictConfig, what: str, why: str) -> None:
    """Refuse a key `what` if rollouts continue during updates. `why` is the reason. Raises ConfigError."""
    if goes_on(config):
        raise ConfigError(
            f"{MODE} = {OmegaConf.select(config, MODE)}: {what} cannot be combined with rollouts that continue during "
            f"updates ({why}): remove it, or write {MODE}: {SYNC}"
        )


def check_asynchronous(settings: Settings, config: DictConfig) -> None:
    """Check that the settings allow rollouts that continue during updates.

    Raises:
        ConfigError: one line with the key and what to change.
    """
    if not goes_on(config):
        return
    mode = str(OmegaConf.select(config, MODE))
    for unfit in (_unfit(settings, config), _out_of_bounds(config, mode), _unfit_separate(settings, config, mode)):
        for what in unfit:
            raise ConfigError(f"{MODE} = {mode}: {what}")


def _unfit(settings: Settings, config: DictConfig) -> Iterator[str]:
    """Yield the settings that only the synchronous trainer supports."""
    instead = f"remove it, or write {MODE}: {SYNC}"
    if settings.trainer.deterministic:
        yield f"trainer.deterministic is impossible: the weights that sample a token depend on timing: {instead}"
    section = settings.task_manager
    if section.curriculum.synthesize_every_epochs > 0:
        yield f"task_manager.curriculum.synthesize_every_epochs counts epochs, which are drawn ahead here: {instead}"
    if OmegaConf.select(config, "skip.rollout_tq.enable"):
        yield f"skip.rollout_tq.enable repeats whole steps of rollouts: {instead}"
    if settings.rollout.agent_container is not None:
        yield (
            "actor_rollout_ref.rollout.agent_container: the container's time limit goes on while the engine sleeps: "
            f"{instead}"
        )
    for role in settings.roles:
        if settings.llm.endpoint(role).base_url == POLICY:
            yield (
                f"llm.roles.{role.value}.base_url = policy: an update would cut the role's replies off; name another "
                "endpoint"
            )


def _out_of_bounds(config: DictConfig, mode: str) -> Iterator[str]:
    place = f"trainer.v1.{VERLS[mode]}.num_warmup_batches"
    ahead, bound = (
        OmegaConf.select(config, place),
        OmegaConf.select(config, "trainer.v1.sampler.max_off_policy_threshold"),
    )
    if bound is not None and bound <= math.ceil(ahead):
        yield (
            f"trainer.v1.sampler.max_off_policy_threshold = {bound} must be above {place} = {ahead}: every group is "
            "that many steps old when it is trained on"
        )


def _unfit_separate(settings: Settings, config: DictConfig, mode: str) -> Iterator[str]:
    """Yield what a configuration with separate GPUs for rollouts lacks."""
    if mode != SEPARATE:
        return
    rollout = config.actor_rollout_ref.rollout
    if settings.device == "cpu":
        yield f"rollouts have GPUs of their own, and device = cpu has none: write {MODE}: {COLOCATED}"
    if rollout.checkpoint_engine.backend == "naive":
        yield "actor_rollout_ref.rollout.checkpoint_engine.backend must not be naive: write nccl, nixl or mooncake"
    for key in ("nnodes", "n_gpus_per_node"):
        if not (OmegaConf.select(rollout, key) or 0) > 0:
            yield f"actor_rollout_ref.rollout.{key} must be above 0: the number of GPUs for rollouts alone"
    syncs = int(config.trainer.v1.separate_async.parameter_sync_step)
    tasks, mini = settings.sizes.train_batch_size, settings.sizes.ppo_mini_batch_size
    if tasks != syncs * mini:
        yield (
            f"data.train_batch_size = {tasks} must be trainer.v1.separate_async.parameter_sync_step ({syncs}) x "
            f"actor_rollout_ref.actor.ppo_mini_batch_size ({mini})"
        )
    needed = settings.sizes.n_gpus_per_node * settings.sizes.nnodes + rollout.n_gpus_per_node * rollout.nnodes
    if settings.ray.address is None and settings.ray.num_gpus < needed:
        yield (
            f"ray.num_gpus = {settings.ray.num_gpus} must be {needed}, those of training and those of rollouts: set "
            "it, or join a cluster with ray.address"
        )
    if settings.exp_manager.enabled:
        yield "exp_manager needs whole steps, and here a step has several batches: remove it"

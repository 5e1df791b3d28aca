"""Supported loss modes (`actor_rollout_ref.actor.policy_loss.loss_mode`), and keys that cannot be combined with them.
Imports no torch, so a mistake is reported before anything is loaded."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from agentevolver.utils.errors import ConfigError

ACTOR = "actor_rollout_ref.actor"
# Modes that clip the ratio at 1 + clip_ratio_high; a sample may have a clip of its own.
BOOSTED = ("vanilla", "gspo", "cispo", "trajectory")
# Modes with a built-in penalty on the distance to the sampling policy, which may outweigh a small advantage.
PENALISING = ("dro", "kl_cov")
# Modes in which a token's gradient has the sign of its advantage, apart from such a penalty. All but `trajectory` are
# verl's.
MODES = (*BOOSTED, *PENALISING, "sapo", "gpg", "dppo_tv", "dppo_kl", "clip_cov", "bypass_mode")
# Modes with one ratio for each row; updates turn by turn multiply the row's ratio.
OF_SEQUENCES = ("gspo", "trajectory")
# Other modes of verl -> why they are refused.
REFUSED = {
    "geo_mean": "gives all tokens of a row their mean advantage, and divides by the rows of a micro-batch, padding "
    "too: write gspo",
}


def inert_clips(steps: int) -> str | None:
    """Return a warning if no upper clip can bind with `steps` optimiser steps for each batch, else None."""
    if steps > 1:
        return None
    return (
        "with one optimiser step a batch every ratio is 1, and no upper clip binds: set "
        f"{ACTOR}.ppo_mini_batch_size to a half or a quarter of data.train_batch_size"
    )


def check_loss(config: Any, *, boosts: bool, row_clips: bool = False) -> None:
    """Check the policy loss.

    Args:
        config: the composed configuration.
        boosts: whether guided samples have an upper clip of their own.
        row_clips: whether `trainer.row_clips` sets the upper clip of other samples.

    Raises:
        ConfigError: one line that says what to write instead.
    """
    mode = str(OmegaConf.select(config, f"{ACTOR}.policy_loss.loss_mode") or "vanilla")
    if mode in REFUSED:
        raise ConfigError(f"{ACTOR}.policy_loss.loss_mode = {mode} {REFUSED[mode]}")
    if mode not in MODES:
        raise ConfigError(f"{ACTOR}.policy_loss.loss_mode = {mode} is not known: write one of {', '.join(MODES)}")
    if (boosts or row_clips) and mode not in BOOSTED:
        instead = "set exp_manager.selective_boosting to false" if boosts else "remove trainer.row_clips"
        raise ConfigError(
            f"{ACTOR}.policy_loss.loss_mode = {mode} has no upper clip by sample: write {', '.join(BOOSTED)}, or "
            f"{instead}"
        )
    if OmegaConf.select(config, "distillation.enabled"):
        raise ConfigError("distillation.enabled = true replaces the policy's loss by its own: set it to false")
    beta = OmegaConf.select(config, f"{ACTOR}.policy_loss.dro_beta")
    if mode == "dro" and not (isinstance(beta, int | float) and beta > 0):
        raise ConfigError(
            f"{ACTOR}.policy_loss.loss_mode = dro needs {ACTOR}.policy_loss.dro_beta above 0, found {beta}"
        )

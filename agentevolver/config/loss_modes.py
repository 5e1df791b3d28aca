"""The loss modes that a run may have (`actor_rollout_ref.actor.policy_loss.loss_mode`),
and what is refused beside them.

Free of torch, so that a mistake is answered before anything is loaded.
"""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from agentevolver.utils.errors import ConfigError

ACTOR = "actor_rollout_ref.actor"
# Modes that clip a ratio at 1 + clip_ratio_high, which a sample may have of its own.
BOOSTED = ("vanilla", "gspo", "cispo", "trajectory")
# Modes with a penalty on the distance to the sampling policy within, which may outweigh a small advantage.
PENALISING = ("dro", "kl_cov")
# Modes in which a token's gradient has the sign of its own advantage, but for such a penalty; all but `trajectory` are
# verl's.
MODES = (*BOOSTED, *PENALISING, "sapo", "gpg", "dppo_tv", "dppo_kl", "clip_cov", "bypass_mode")
# Modes with one ratio a row, which is what an update of one turn after the other multiplies.
OF_SEQUENCES = ("gspo", "trajectory")
# verl's others, and why not.
REFUSED = {
    "geo_mean": "gives all tokens of a row their mean advantage, and divides by the rows of a micro-batch, padding "
    "too: write gspo",
}


def inert_clips(steps: int) -> str | None:
    """Return what to say of upper clips by row where a batch is updated on in so many optimiser steps; None where they
    can bind."""
    if steps > 1:
        return None
    return (
        "with one optimiser step a batch every ratio is 1, and no upper clip binds: set "
        f"{ACTOR}.ppo_mini_batch_size to a half or a quarter of data.train_batch_size"
    )


def check_loss(config: Any, *, boosts: bool, row_clips: bool = False) -> None:
    """Refuse a policy loss that would not do what it says.

    Args:
        config: the composed configuration.
        boosts: whether guided samples may have an upper clip of their own.
        row_clips: whether `trainer.row_clips` gives others one.

    Raises:
        ConfigError: with one line that says what to write instead.
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
        raise ConfigError(
            "distillation.enabled = true brings a loss of its own in the place of the policy's: set it to false"
        )
    beta = OmegaConf.select(config, f"{ACTOR}.policy_loss.dro_beta")
    if mode == "dro" and not (isinstance(beta, int | float) and beta > 0):
        raise ConfigError(
            f"{ACTOR}.policy_loss.loss_mode = dro needs {ACTOR}.policy_loss.dro_beta above 0, found {beta}"
        )

"""The actor's update of a training step: what each row is told for the loss, the rows' order, and what is warned of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.utils.config import omega_conf_to_dataclass

from agentevolver.config.loss_modes import inert_clips
from agentevolver.config.schema import Settings
from agentevolver.trainer.loss import finish_metrics, selective_ppo_loss
from agentevolver.trainer.parts import TrainerPart
from agentevolver.trainer.row_clips import ClipWatch, RowClips
from agentevolver.trainer.update import arrange, optimiser_steps, required_multiple, update_actor
from agentevolver.types import Trajectory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Update:
    """Sizes of one update.

    `actor` is verl's section `actor_rollout_ref.actor`, `steps` are optimiser steps, `ranks` data-parallel ones;
    the number of rows must be a multiple of `multiple`; `temperature` is what the rows were sampled at.
    """

    actor: Any
    steps: int
    ranks: int
    multiple: int
    temperature: float
    step: int


class ActorUpdate:
    """The update of the policy over whole trajectories, with upper clips of a row's own.

    Args:
        settings: the run's.
        config: verl's, whole; read anew at each update.

    Raises:
        RuleError: a rule of `trainer.row_clips` that cannot be found or made.
    """

    def __init__(self, settings: Settings, config: Any) -> None:
        self._config = config
        self._kl_to = settings.exp_manager.kl_to
        actor = config.actor_rollout_ref.actor
        self._clips = RowClips(settings.exp_manager, settings.trainer.row_clips, float(actor.clip_ratio_high))
        self._watch = ClipWatch() if self._clips.groups else None
        inert = inert_clips(optimiser_steps(config) * actor.ppo_epochs) if self._clips.groups else None
        if inert is not None:
            logger.warning("trainer.row_clips: %s", inert)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that `tell` puts."""
        return self._clips.columns

    def tell(self, batch: KVBatchMeta, rows: Sequence[int], trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Give each row its upper clip and what else the loss reads; returns the metrics (`RowClips.tell`)."""
        return self._clips.tell(batch, rows, trajectories)

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups of rows whose clipped tokens are reported apart."""
        return self._clips.groups

    def loss(self) -> Callable[..., Any]:
        """Return the loss of a micro-batch, for verl's workers."""
        actor = self._config.actor_rollout_ref.actor
        if self._kl_to == "old":  # `for_verl` turned it off, so that verl makes no reference
            actor = OmegaConf.merge(actor, {"use_kl_loss": True})
        config = omega_conf_to_dataclass(actor)
        return partial(selective_ppo_loss, config=config, kl_to=self._kl_to, groups=self.groups)

    def of_step(self, step: int, steps: int, ranks: int) -> Update:
        """Return the update of a training step, of `steps` optimiser steps on `ranks` ranks."""
        section = self._config.actor_rollout_ref
        multiple = required_multiple(section, ranks, steps)
        return Update(section.actor, steps, ranks, multiple, section.rollout.temperature, step)

    def update(
        self, workers: Any, batch: KVBatchMeta, rows: Sequence[int], update: Update, parts: TrainerPart
    ) -> dict[str, Any]:
        """Update the policy on a batch whose rows were told, and return the metrics.

        Args:
            workers: the actor's worker group.
            batch: the step's rows; their order is changed.
            rows: the places of those that are trained on.
            update: its sizes.
            parts: of the run; one of them may update the policy its own way.
        """
        metrics = parts.update_actor(workers, batch, rows, update) if rows else None
        if metrics is None:
            seed = update.actor.data_loader_seed + update.step if update.actor.shuffle else None
            arrange(batch, rows, update.ranks, update.steps, seed)
            metrics = update_actor(workers, batch, update.actor, update.steps, update.temperature)
        done = finish_metrics(metrics, self.groups) if self._clips.active else metrics
        if self._watch is not None:
            self._watch.look(done)
        return done

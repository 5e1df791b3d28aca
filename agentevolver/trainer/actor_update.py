"""The actor's update of a training step: what each row is told for the loss, the rows' order, and what is warned of."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from transfer_queue import KVBatchMeta

from agentevolver.config.loss_modes import inert_clips
from agentevolver.config.schema import Settings
from agentevolver.trainer.loss import finish_metrics
from agentevolver.trainer.row_clips import ClipWatch, RowClips
from agentevolver.trainer.sequential import TurnUpdates
from agentevolver.trainer.update import arrange, optimiser_steps, required_multiple, update_actor
from agentevolver.types import Trajectory

logger = logging.getLogger(__name__)


class ActorUpdate:
    """One update over whole trajectories, or one of each turn (`algorithm.update_order`), with upper clips of a row's
    own.

    Args:
        settings: the run's.
        config: verl's, whole; read anew at each update.

    Raises:
        RuleError: a rule of `trainer.row_clips` that cannot be found or made.
    """

    def __init__(self, settings: Settings, config: Any) -> None:
        self._config = config
        self._seed = settings.data.seed
        actor = config.actor_rollout_ref.actor
        self._clips = RowClips(settings.exp_manager, settings.trainer.row_clips, float(actor.clip_ratio_high))
        self._watch = ClipWatch() if self._clips.is_ambiguous else None
        inert = inert_clips(optimiser_steps(config) * actor.ppo_epochs) if self._clips.is_ambiguous else None
        if inert is not None:
            logger.warning("trainer.row_clips: %s", inert)
        order = settings.algorithm.update_order
        self.turns = None if order is None else TurnUpdates(order, settings.algorithm.sequential_clip)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that `tell` puts."""
        return self._clips.columns

    def tell(self, batch: KVBatchMeta, rows: Sequence[int], trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Give each row its upper clip and what else the loss reads; returns the metrics (`RowClips.tell`)."""
        return self._clips.tell(batch, rows, trajectories)

    def update(
        self, workers: Any, batch: KVBatchMeta, rows: Sequence[int], *, step: int, steps: int, ranks: int
    ) -> dict[str, Any]:
        """Update the policy on a batch whose rows were told, and return the metrics.

        Args:
            workers: the actor's worker group.
            batch: the step's rows; their order is changed.
            rows: the places of those that are trained on.
            step: the training step, which draws what is drawn.
            steps: optimiser steps, of a turn where turns are updated one after the other.
            ranks: data-parallel ranks.
        """
        metrics = self._updated(workers, batch, rows, step, steps, ranks)
        done = finish_metrics(metrics) if self._clips.active else metrics
        if self._watch is not None:
            self._watch.look(done)
        return done

    def _updated(
        self, workers: Any, batch: KVBatchMeta, rows: Sequence[int], step: int, steps: int, ranks: int
    ) -> dict[str, Any]:
        section = self._config.actor_rollout_ref
        actor, temperature = section.actor, section.rollout.temperature
        if self.turns is not None and rows:
            return self.turns.update(
                workers,
                batch,
                rows,
                actor,
                steps=steps,
                ranks=ranks,
                multiple=required_multiple(section, ranks, steps),
                temperature=temperature,
                seed=self._seed + step,
            )
        arrange(batch, rows, ranks, steps, actor.data_loader_seed + step if actor.shuffle else None)
        return update_actor(workers, batch, actor, steps, temperature)

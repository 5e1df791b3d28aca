"""The actor's update of a training step: clip bounds, row order, loss and warnings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.utils.config import omega_conf_to_dataclass

from agentevolver.config.asynchronous import goes_on
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

    `actor` is the section `actor_rollout_ref.actor`, `ranks` counts data-parallel ranks. The number of rows must be a
    multiple of `multiple`.
    """

    actor: Any
    steps: int
    ranks: int
    multiple: int
    temperature: float
    step: int


def bypasses(config: Any) -> bool:
    """Return whether the engine's log-probs serve as the old ones, and the trainer computes none."""
    return bool((config.algorithm.get("rollout_correction") or {}).get("bypass_mode", False))


class ActorUpdate:
    """The policy update over whole trajectories, with an upper clip bound for each row.

    Raises ValueError if a rule of `trainer.row_clips` cannot be found or made.
    """

    def __init__(self, settings: Settings, config: Any) -> None:
        # Not copied: changes of the configuration after this point take effect.
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
        """Names of the batch columns that `tell` writes."""
        return self._clips.columns

    def tell(self, batch: KVBatchMeta, rows: Sequence[int], trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Write the columns that the loss reads, such as each row's upper clip, and return the metrics."""
        return self._clips.tell(batch, rows, trajectories)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the row groups whose clipped tokens are reported separately."""
        return self._clips.groups

    def loss(self) -> Callable[..., Any]:
        actor = self._config.actor_rollout_ref.actor
        if self._kl_to == "old":  # `for_verl` turned it off, so that verl makes no reference
            actor = OmegaConf.merge(actor, {"use_kl_loss": True})
        # The engine's log-probs are those of the weights in training before the first optimiser step alone.
        one_step = optimiser_steps(self._config) * actor.ppo_epochs == 1
        return partial(
            selective_ppo_loss,
            config=omega_conf_to_dataclass(actor),
            kl_to=self._kl_to,
            groups=self.groups,
            compares=one_step and bypasses(self._config) and not goes_on(self._config),
        )

    def of_step(self, step: int, steps: int, ranks: int) -> Update:
        section = self._config.actor_rollout_ref
        multiple = required_multiple(section, ranks, steps)
        return Update(section.actor, steps, ranks, multiple, section.rollout.temperature, step)

    def update(
        self, workers: Any, batch: KVBatchMeta, rows: Sequence[int], update: Update, parts: TrainerPart
    ) -> dict[str, Any]:
        """Update the policy and return the metrics; `tell` must have run on the batch.

        `rows` are the indices of the rows to train on. The batch is reordered. A trainer part may replace the update.
        """
        metrics = parts.update_actor(workers, batch, rows, update) if rows else None
        if metrics is None:
            seed = update.actor.data_loader_seed + update.step if update.actor.shuffle else None
            arrange(batch, rows, update.ranks, update.steps, seed)
            metrics = update_actor(workers, batch, update.actor, update.steps, update.temperature)
        done = finish_metrics(metrics, self.groups)
        if self._watch is not None:
            self._watch.look(done)
        return done

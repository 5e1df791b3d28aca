"""The data loader of a training run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf, open_dict
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.dataset.rl_dataset import collate_fn

from agentevolver.config.schema import Settings
from agentevolver.trainer.tasks import TrainingTasks
from experience_manager.guide import validation_rollouts


class Loading(PPOTrainer):
    """Mixin over verl's `PPOTrainer`: its loader, or this project's if epochs are a mixture or follow a curriculum."""

    settings: Settings
    config: Any
    _tasks: TrainingTasks | None = None

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        if self.settings.exp_manager.val_rollout_mode == "both":
            self.val_dataset.rollouts = sum(validation_rollouts(self.settings.exp_manager, self.settings.sizes.val_n))
        if self.settings.draws_epochs:
            self._tasks = self._draw_epochs()
        trainer = self.config.trainer
        if trainer.total_training_steps and not trainer.get("val_only"):
            # verl's loop also ends after the last epoch, but then without the last step's validation and checkpoint.
            epochs = math.ceil(trainer.total_training_steps / self.steps_per_epoch)
            trainer.total_epochs = max(trainer.total_epochs, epochs)

    def _draw_epochs(self) -> TrainingTasks:
        data, trainer = self.config.data, self.config.trainer
        tasks = TrainingTasks(self.settings, Path(data.train_files))
        self.train_dataset = tasks.dataset
        self.train_dataloader = tasks.dataset.loader(data.get("gen_batch_size") or data.train_batch_size, collate_fn)
        self.steps_per_epoch = len(self.train_dataset) // data.train_batch_size
        self.total_training_steps = trainer.total_training_steps or self.steps_per_epoch * trainer.total_epochs
        # The learning-rate schedule counts optimiser steps, as verl's own does.
        with open_dict(self.config):
            for section in ("actor_rollout_ref.actor.optim", "critic.optim"):
                if OmegaConf.select(self.config, section):
                    OmegaConf.update(
                        self.config,
                        f"{section}.total_training_steps",
                        self.total_training_steps * self.parameter_sync_step,
                    )
        tasks.steps_per_epoch, tasks.last_step = self.steps_per_epoch, self.total_training_steps
        return tasks

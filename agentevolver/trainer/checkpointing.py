"""When a checkpoint is written, sealed and loaded: verl's part and this project's part."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import torch
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from agentevolver.config.asynchronous import VERLS
from agentevolver.config.schema import Settings
from agentevolver.config.verl_keys import SYNC
from agentevolver.trainer.checkpoint import (
    finish,
    keeping_all,
    kept,
    make_room,
    pool_of,
    prepare_start,
    restore_state,
    save_state,
    writing,
)
from agentevolver.trainer.checkpoints import DATA
from agentevolver.trainer.experience import RunExperience
from agentevolver.trainer.failures import FailureGuard
from agentevolver.trainer.monitor.log import supersede_metrics
from agentevolver.trainer.monitor.watchdog import DISK, Watchdog
from agentevolver.trainer.parts import TrainerParts
from agentevolver.utils.files import whole

logger = logging.getLogger(__name__)

# Folder in a checkpoint of an asynchronous run: the groups that had started.
QUEUE = "transfer_queue"


class Checkpointing(PPOTrainer):
    """Mixin over verl's `PPOTrainer`. A checkpoint is valid once its step's metrics and all its parts are on disk."""

    verl_mode: str
    settings: Settings
    directory: Path
    _watchdog: Watchdog
    _failures: FailureGuard
    parts: TrainerParts
    _experience: RunExperience | None
    _save_due = False
    _sealed_s = 0.0

    @property
    def _checkpoint(self) -> Path:
        return Path(self.config.trainer.default_local_dir, f"global_step_{self.global_steps}")

    def _save_checkpoint(self) -> None:
        # verl's part is written while vLLM has freed the memory. The checkpoint is sealed after the step's metrics are
        # on disk.
        with self._watchdog.phase("checkpoint", lambda: DISK), writing(self._checkpoint):
            make_room(self._checkpoint, kept(self.config.trainer))
            with keeping_all(self.config.trainer):
                super()._save_checkpoint()
        self._save_due = True

    def _step_is_told(self) -> None:
        if self._save_due:
            self._save_due = False
            self._seal_checkpoint()

    def _seal_checkpoint(self) -> None:
        # The loader, the pool and the trainer's state are saved after the validation, which may change them.
        began, folder = time.perf_counter(), self._checkpoint
        with self._watchdog.phase("checkpoint", lambda: DISK), writing(folder):
            with whole(folder / DATA) as draft:
                torch.save(self.train_dataloader.state_dict(), draft)
            self.parts.save(folder, self.global_steps)
            save_state(folder, failed_in_a_row=self._failures.in_a_row, pool=pool_of(self.settings))
            finish(folder, kept(self.config.trainer))
        self._sealed_s = time.perf_counter() - began

    def _load_checkpoint(self) -> None:
        trainer = self.config.trainer
        own, validates = trainer.resume_mode == "auto", bool(trainer.get("val_only", False))
        prepare_start(trainer, self.directory)
        super()._load_checkpoint()
        # A run that starts over also repeats the validation before the first step. A validation alone repeats no step.
        repeated = 0 if validates else supersede_metrics(self.directory, self.global_steps or -1)
        starts_over = self.global_steps == 0 and not validates and trainer.resume_mode != "resume_path"
        if (own or starts_over) and self._experience is not None:
            self._experience.restore_pool(self._checkpoint if self.global_steps > 0 else self._experience.beginning)
        if self.global_steps > 0:
            logger.info("resumed at step %d, %d later steps are repeated", self.global_steps, repeated)
            folder, pool = (self._checkpoint, pool_of(self.settings)) if own else (Path(trainer.resume_from_path), None)
            if self.verl_mode == VERLS[SYNC] and (folder / QUEUE).exists():
                logger.warning(
                    "%s was written by an asynchronous trainer: its unfinished groups are dropped",
                    folder,
                )
            self._failures.in_a_row = restore_state(folder, pool=pool)
            self.parts.restore(folder)
        if validates or self.global_steps > 0:
            # A resumed run was validated when it stopped. With `val_only`, verl exits after this validation, and would
            # start training without it.
            trainer.val_before_train = validates

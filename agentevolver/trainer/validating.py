"""Validation within a training run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from agentevolver.config.schema import Settings
from agentevolver.trainer.failures import FailureGuard
from agentevolver.trainer.filling import PoolFilling
from agentevolver.trainer.monitor.log import Status
from agentevolver.trainer.monitor.watchdog import Watchdog
from agentevolver.trainer.parts import TrainerParts
from agentevolver.trainer.validation import Validation
from agentevolver.utils.files import write_jsonl
from experience_manager.guide import validation_rollouts


class Validating(PPOTrainer):
    """Mixin over verl's `PPOTrainer` beside `PoolFilling`: scouts, records, and exact averages in place of verl's
    bootstrap."""

    settings: Settings
    config: Any
    directory: Path
    status: Status
    parts: TrainerParts
    _watchdog: Watchdog
    _validation_failures: FailureGuard
    _phase_began: float

    def on_validate_begin(self) -> None:
        super().on_validate_begin()
        assert isinstance(self, PoolFilling)
        self._scout()
        n = sum(validation_rollouts(self.settings.exp_manager, self.settings.sizes.val_n))
        # An evaluation belongs to one step and has no total.
        total = {} if self.config.trainer.get("val_only") else {"total_steps": self.total_training_steps}
        self.status.set(f"validating {len(self.val_dataset)} tasks x {n}", step=self.global_steps, **total)
        self._phase_began = time.perf_counter()
        self._settle_experience()
        self._watchdog.enter("validation")

    def on_validate_end(self) -> None:
        self._watchdog.leave()
        super().on_validate_end()

    def _val_metrics_update(
        self,
        data_sources: list[str],
        sample_uids: list[str],
        reward_extra_infos_dict: dict[str, list[Any]],
        sample_turns: list[int],
        expected_acc_counts: Any = None,
    ) -> dict[str, float]:
        seen = Validation.of(data_sources, sample_uids, reward_extra_infos_dict, sample_turns)
        write_jsonl(self.directory / "validation" / f"step_{self.global_steps}.jsonl", seen.records)
        self._validation_failures.check(seen.trajectories)
        metrics = seen.metrics(self.settings.exp_manager, self.settings.sizes.val_n)
        metrics |= self.parts.after_validation(self.global_steps, seen.trajectories)
        metrics["timing_s/testing"] = time.perf_counter() - self._phase_began
        return metrics

"""Filling the experience pool: rollouts outside of a training step, whose experience guides later rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from agentevolver.config.schema import Settings
from agentevolver.trainer.experience import RunExperience, scout_path, warm_start_path
from agentevolver.trainer.failures import FailureGuard
from agentevolver.trainer.monitor.log import Status
from agentevolver.trainer.monitor.watchdog import Watchdog
from agentevolver.trainer.roll_out import roll_out
from agentevolver.types import Task, Trajectory
from task_manager.tasks import read_tasks


class PoolFilling(PPOTrainer):
    """Mixin over verl's `PPOTrainer`: the warm start before the first step, the scouts before the last validation."""

    settings: Settings
    config: Any
    status: Status
    agent_loop_manager: Any
    _watchdog: Watchdog
    _experience: RunExperience | None
    _filling_failures: FailureGuard

    def _look_after_workers(self) -> None:
        """Restart the rollouts of lost workers. Called repeatedly while the trainer waits for rollouts."""
        manager = getattr(self, "agent_loop_manager", None)
        if manager is not None:
            manager.look_after()

    def _warm_start(self) -> None:
        if self.global_steps > 0 or self._experience is None:
            return
        if self.settings.exp_manager.init_exp_before_training:
            self._fill_pool("warm_start", warm_start_path(self.settings))
        self._experience.save(self._experience.beginning)

    def _scout(self) -> None:
        is_last = self.config.trainer.get("val_only", False) or self.global_steps >= self.total_training_steps
        if is_last and self.settings.exp_manager.scout.split is not None:
            self._fill_pool("scout", scout_path(self.settings), self.global_steps)

    def _settle_experience(self) -> None:
        if self._experience is not None:
            with self._watchdog.phase("experience of the step before"):
                self._experience.settle()

    def _fill_pool(self, name: str, path: Path, step: int | None = None) -> None:
        if self._experience is None:
            return

        def tell(done: int, total: int) -> None:
            self._watchdog.enter(f"filling the experience pool ({name})")
            what = f"filling the experience pool ({name}): {done} of {total} tasks"
            self.status.set(what, step=self.global_steps, done=done, total=total)

        self._experience.fill(name, read_tasks(path), partial(self._roll_out, name), tell, step=step)
        self._watchdog.leave()

    def _roll_out(self, name: str, tasks: Sequence[Task], n: int) -> list[Trajectory]:
        seed, step, meanwhile = self.settings.data.seed, self.global_steps, self._look_after_workers
        trajectories = roll_out(self.agent_loop_manager, name, tasks, n, seed=seed, step=step, meanwhile=meanwhile)
        self._filling_failures.check(trajectories)
        return trajectories

"""The tasks of a training run that draws its epochs itself: the mixture, its curriculum, and new tasks between
epochs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from agentevolver.config.parts import questionings
from agentevolver.config.schema import Settings
from agentevolver.trainer.metrics import task_metrics
from agentevolver.types import Trajectory
from task_manager.background import BackgroundQuestioning
from task_manager.dataset import MixedTasks
from task_manager.profile import profile_for
from task_manager.synthetic import graded_by, synthetic_tasks_of
from task_manager.tasks import read_tasks

logger = logging.getLogger(__name__)


class TrainingTasks:
    """What an epoch is drawn from. `dataset` makes the loader; its size is that of the first file's tasks, whatever
    rounds add later."""

    def __init__(self, settings: Settings, train_file: Path) -> None:
        """Raises ConfigError or ValueError for task files that cannot be used."""
        section, several = settings.task_manager, settings.env_service.is_mixture
        # Of each environment that synthetic tasks are made for.
        self._questionings = {one.env_service.env_type: one for one in questionings(settings)}
        first, later = synthetic_tasks_of(self._questionings.values())
        weights = {one.env_type: one.weight for one in settings.environments} if several else None
        self.dataset = MixedTasks(read_tasks(train_file), first, section, weights)
        self.dataset.add_synthetic(later)
        self._background: dict[str, BackgroundQuestioning] = {}
        if section.curriculum.synthesize_every_epochs > 0:
            folder = settings.experiment_dir / "tasks" / "rounds"
            self._background = {
                name: BackgroundQuestioning(one, folder / name if several else folder)
                for name, one in self._questionings.items()
            }

    def record(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Take a step's trajectories; returns what they say about the tasks."""
        self.dataset.record(trajectories)
        return task_metrics(trajectories) | self.dataset.epochs.metrics()

    def end_step(self, step: int, steps_per_epoch: int) -> None:
        """Let tasks of a finished round join, and begin another round where one is due after the epoch that `step`
        (from 1) ends."""
        epoch, inside = divmod(step, steps_per_epoch)
        for name, background in self._background.items():
            section = self._questionings[name].task_manager
            made = background.collect()
            if made is not None:
                self.dataset.add_synthetic([graded_by(section, task) for task in made])
                logger.info("%d new tasks of %s take part from the next epoch on", len(made), name)
            if inside == 0 and background.is_due(epoch):
                wanted = profile_for(name, section.env_profile).task_preference
                background.start(self.dataset.epochs.curriculum(name).preference(wanted))

    def close(self) -> None:
        """End the rounds that run."""
        for background in self._background.values():
            background.stop()

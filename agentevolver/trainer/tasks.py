"""The tasks of a training run that draws its epochs itself: the mixture, its curriculum, and new tasks between
epochs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from agentevolver.config.parts import from_settings
from agentevolver.config.schema import Settings
from agentevolver.trainer.metrics import task_metrics
from agentevolver.types import Trajectory
from task_manager.background import BackgroundQuestioning
from task_manager.dataset import MixedTasks
from task_manager.profile import profile_for
from task_manager.synthetic import graded_by, synthetic_tasks
from task_manager.tasks import read_tasks

logger = logging.getLogger(__name__)


class TrainingTasks:
    """What an epoch is drawn from. `dataset` makes the loader; its size is that of the first file's tasks, whatever
    rounds add later."""

    def __init__(self, settings: Settings, train_file: Path) -> None:
        """Raises ConfigError or ValueError for task files that cannot be used."""
        section = settings.task_manager
        first, later = synthetic_tasks(section) if section.mixture.needs_synthetic else ([], [])
        self.dataset = MixedTasks(read_tasks(train_file), first, section)
        self.dataset.add_synthetic(later)
        self._settings = settings
        self._background: BackgroundQuestioning | None = None
        if section.curriculum.synthesize_every_epochs > 0:
            self._background = BackgroundQuestioning(
                from_settings(settings), settings.experiment_dir / "tasks" / "rounds"
            )

    def record(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Take a step's trajectories; returns what they say about the tasks."""
        self.dataset.record(trajectories)
        return task_metrics(trajectories) | self.dataset.curriculum.metrics()

    def end_step(self, step: int, steps_per_epoch: int) -> None:
        """Let tasks of a finished round join, and begin another round where one is due after the epoch that `step`
        (from 1) ends."""
        background = self._background
        if background is None:
            return
        made = background.collect()
        if made is not None:
            self.dataset.add_synthetic([graded_by(self._settings.task_manager, task) for task in made])
            logger.info("%d new tasks take part from the next epoch on", len(made))
        epoch, inside = divmod(step, steps_per_epoch)
        if inside == 0 and background.is_due(epoch):
            profile = profile_for(self._settings.env_service.env_type, self._settings.task_manager.env_profile)
            background.start(self.dataset.curriculum.preference(profile.task_preference))

    def close(self) -> None:
        """End a round that runs."""
        if self._background is not None:
            self._background.stop()

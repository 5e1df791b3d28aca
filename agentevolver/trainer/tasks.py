"""Tasks of a run that draws its own epochs: the mixture, its curriculum, and new tasks between epochs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentevolver.config.manager_settings import questionings
from agentevolver.config.schema import Settings
from agentevolver.trainer.metrics import task_metrics
from agentevolver.trainer.parts import TrainerPart
from agentevolver.types import Task, Trajectory
from task_manager.background import BackgroundQuestioning
from task_manager.dataset import MixedTasks
from task_manager.profile import TaskPreference, profile_for
from task_manager.synthetic_tasks import funnel_metrics, graded_by, synthetic_tasks_of
from task_manager.tasks import read_tasks

logger = logging.getLogger(__name__)


class TrainingTasks(TrainerPart):
    """The source of epochs. `dataset` makes the loader; its size is fixed by the first task file."""

    steps_per_epoch = 1
    last_step = 0
    """The training's last step, after which no round is begun."""

    def __init__(self, settings: Settings, train_file: Path) -> None:
        """Raises ConfigError or ValueError if task files cannot be used."""
        section, self.several = settings.task_manager, settings.env_service.is_mixture
        self.questionings = {one.env_service.env_type: one for one in questionings(settings)}
        """What questioning reads, by the environment that synthetic tasks are made for."""
        first, later = synthetic_tasks_of(self.questionings.values())
        weights = {one.env_type: one.weight for one in settings.environments} if self.several else None
        self.dataset = MixedTasks(read_tasks(train_file), first, section, weights)
        self.dataset.add_synthetic(later)
        self._folder = settings.experiment_dir
        self._questioned = settings.questioned if self.several else (None,)
        self._rounds = self._folder / "tasks" / "rounds"
        self._background: dict[str, BackgroundQuestioning] = {}
        self._rounds_made: Counter[str] = Counter()
        if section.curriculum.synthesize_every_epochs > 0:
            self._background = {
                name: BackgroundQuestioning(one, self.round_folder(name)) for name, one in self.questionings.items()
            }

    def round_folder(self, name: str) -> Path:
        return self._rounds / name if self.several else self._rounds

    def after_rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        self.dataset.record(trajectories)
        return task_metrics(trajectories) | self.dataset.epochs.metrics()

    def after_update(self, step: int, metrics: Mapping[str, float]) -> Mapping[str, float]:
        # Proposals from before training are logged once, with the first step.
        first = funnel_metrics(self._folder, self._questioned) if step == 1 else {}
        return first | {f"questioning/{name}": float(count) for name, count in self._rounds_made.items()}

    def after_step(self, step: int) -> None:
        """Add the tasks of a finished round, and start the next round if one is due at the end of an epoch."""
        if step >= self.last_step:
            return
        epoch, inside = divmod(step, self.steps_per_epoch)
        for name, background in self._background.items():
            made = background.collect()
            if made is not None:
                self._rounds_made["rounds_with_tasks" if made else "empty_rounds"] += 1
                self.add(name, made)
            if inside == 0 and background.is_due(epoch):
                background.start(self.wanted(name))

    def close(self) -> None:
        for background in self._background.values():
            background.stop()

    def wanted(self, name: str) -> TaskPreference:
        """Return the preferred difficulty of new tasks, from the environment's profile and the curriculum."""
        wanted = profile_for(name, self.questionings[name].task_manager.env_profile).task_preference
        return self.dataset.epochs.curriculum(name).preference(wanted)

    def add(self, name: str, made: Sequence[Task]) -> None:
        """Add new tasks of an environment, from the next epoch on."""
        section = self.questionings[name].task_manager
        self.dataset.add_synthetic([graded_by(section, task) for task in made])
        logger.info("%d new tasks of %s are used from the next epoch on", len(made), name)

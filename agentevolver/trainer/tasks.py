"""The tasks of a training run that draws its epochs itself: the mixture, its curriculum, and new tasks between
epochs or by the closed loop."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agentevolver.config.parts import questionings
from agentevolver.config.schema import Settings
from agentevolver.trainer.closed_loop import ClosedLoop
from agentevolver.trainer.metrics import task_metrics
from agentevolver.types import Task, Trajectory
from agentevolver.utils.files import write_json
from task_manager.background import BackgroundQuestioning
from task_manager.dataset import MixedTasks
from task_manager.profile import TaskPreference, profile_for
from task_manager.synthetic import graded_by, synthetic_tasks_of
from task_manager.tasks import read_tasks

logger = logging.getLogger(__name__)

# Of a checkpoint, where the loop is closed: what it knew of the tasks, by environment.
LOOP_STATE = "closed_loop.json"


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
        rounds = settings.experiment_dir / "tasks" / "rounds"
        folders = {name: rounds / name if several else rounds for name in self._questionings}
        self._background: dict[str, BackgroundQuestioning] = {}
        if section.curriculum.synthesize_every_epochs > 0:
            self._background = {
                name: BackgroundQuestioning(one, folders[name]) for name, one in self._questionings.items()
            }
        self._loops: dict[str, ClosedLoop] = {}
        if section.closed_loop.enable:
            self._loops = {name: ClosedLoop(one, folders[name]) for name, one in self._questionings.items()}
            for name in self._loops:
                self._focus(name)
        self._several = several

    def record(self, step: int, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Take the trajectories of a step (from 1); returns what they say about the tasks."""
        self.dataset.record(trajectories)
        metrics = task_metrics(trajectories) | self.dataset.epochs.metrics()
        for name, loop in self._loops.items():
            found = loop.record(step, [one for one in trajectories if one.task.env_type == name])
            mixture = self.dataset.epochs.mixture(name)
            mixture.retire(loop.mastered)
            found["closed_loop/retired"] = float(len(mixture.retired))
            metrics |= {f"{metric}/{name}" if self._several else metric: value for metric, value in found.items()}
        return metrics

    def end_step(self, step: int, steps_per_epoch: int) -> None:
        """Let tasks of a finished round join, and begin another round where one is due after the epoch that `step`
        (from 1) ends."""
        epoch, inside = divmod(step, steps_per_epoch)
        for name, background in self._background.items():
            made = background.collect()
            if made is not None:
                self._add(name, made)
            if inside == 0 and background.is_due(epoch):
                background.start(self._wanted(name))
        for name, loop in self._loops.items():
            if made := loop.end_step(step, partial(self._wanted, name)):
                self._add(name, made)
                self._focus(name)

    def save(self, folder: Path) -> None:
        """Write what the closed loop knows into a checkpoint's folder; nothing without one."""
        if self._loops:
            write_json(folder / LOOP_STATE, {name: loop.state_dict() for name, loop in self._loops.items()})

    def restore(self, folder: Path) -> None:
        """Go on from a checkpoint's folder, once the loader is restored. A loop that the checkpoint did not have begins
        with nothing known."""
        path = folder / LOOP_STATE
        saved = json.loads(path.read_text(encoding="utf-8")) if self._loops and path.exists() else {}
        for name, loop in self._loops.items():
            if name in saved:
                loop.load_state_dict(saved[name])

    def close(self) -> None:
        """End the rounds that run."""
        for background in self._background.values():
            background.stop()
        for loop in self._loops.values():
            loop.stop()

    def _wanted(self, name: str) -> TaskPreference:
        wanted = profile_for(name, self._questionings[name].task_manager.env_profile).task_preference
        return self.dataset.epochs.curriculum(name).preference(wanted)

    def _add(self, name: str, made: Sequence[Task]) -> None:
        section = self._questionings[name].task_manager
        self.dataset.add_synthetic([graded_by(section, task) for task in made])
        logger.info("%d new tasks of %s take part from the next epoch on", len(made), name)

    def _focus(self, name: str) -> None:
        share = self._questionings[name].task_manager.closed_loop.share
        self.dataset.epochs.mixture(name).focus(self._loops[name].made, share)

"""SEAL's trainer parts: diagnoses of failed rollouts, and rounds of new tasks against the weaknesses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from agentevolver.config.schema import Settings
from agentevolver.recipes.seal.closed_loop import ClosedLoop
from agentevolver.recipes.seal.diagnose import diagnose
from agentevolver.recipes.seal.settings import SealSettings, settings_of
from agentevolver.trainer.parts import TrainerPart
from agentevolver.trainer.recipe_parts import PartContext
from agentevolver.trainer.tasks import TrainingTasks
from agentevolver.types import Trajectory
from agentevolver.utils.files import write_json
from task_manager.actions import format_of

STATE = "closed_loop.json"
"""File of a checkpoint with the loops' state by environment."""


def parts(context: PartContext) -> list[TrainerPart]:
    section = settings_of(context.settings)
    if not section.enable:
        return []
    found: list[TrainerPart] = [DiagnosisPart(context.settings)]
    return found if context.tasks is None else [*found, ClosedLoopPart(section, context.tasks)]


class DiagnosisPart(TrainerPart):
    def __init__(self, settings: Settings) -> None:
        self._format = settings.task_manager.action_format

    def after_rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        for one in trajectories:
            one.diagnoses = diagnose(one, format_of(one.task.env_type, self._format))
        return {}


class ClosedLoopPart(TrainerPart):
    """One closed loop for each environment with synthetic tasks."""

    def __init__(self, section: SealSettings, tasks: TrainingTasks) -> None:
        self._section = section
        self._tasks = tasks
        self._loops = {
            name: ClosedLoop(section, one, tasks.round_folder(name)) for name, one in tasks.questionings.items()
        }
        for name in self._loops:
            self._focus(name)

    def after_rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        metrics: dict[str, float] = {}
        for name, loop in self._loops.items():
            found = loop.record(step, [one for one in trajectories if one.task.env_type == name])
            mixture = self._tasks.dataset.epochs.mixture(name)
            mixture.retire(loop.mastered)
            found["closed_loop/retired"] = float(len(mixture.retired))
            several = self._tasks.several
            metrics |= {f"{metric}/{name}" if several else metric: value for metric, value in found.items()}
        return metrics

    def after_step(self, step: int) -> None:
        if step >= self._tasks.last_step:
            return
        for name, loop in self._loops.items():
            if made := loop.end_step(step, partial(self._tasks.wanted, name)):
                self._tasks.add(name, made)
                self._focus(name)

    def save(self, folder: Path, step: int) -> None:
        write_json(folder / STATE, {name: loop.state_dict() for name, loop in self._loops.items()})

    def restore(self, folder: Path) -> None:
        """Load the loops' state from a checkpoint's folder; a loop that is not in it starts empty."""
        path = folder / STATE
        saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for name, loop in self._loops.items():
            if name in saved:
                loop.load_state_dict(saved[name])

    def close(self) -> None:
        for loop in self._loops.values():
            loop.stop()

    def _focus(self, name: str) -> None:
        self._tasks.dataset.epochs.mixture(name).focus(self._loops[name].made, self._section.share)

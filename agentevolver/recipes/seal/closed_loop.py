"""The closed loop: failures in training decide which tasks are made next.

Each step updates the signals of its tasks and the weaknesses of its failures; checkpoints hold both. Every
`recipes.seal.every` steps a background round makes tasks against the weaknesses. `rounds.json` records each started
round with its request. A run that resumes from an earlier checkpoint repeats the request and finds the finished work in
the journal, so no task is made twice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentevolver.recipes.seal.settings import SealSettings
from agentevolver.recipes.seal.signals import Signals
from agentevolver.recipes.seal.weakness import WeaknessWindow, focused
from agentevolver.types import Task, Trajectory
from agentevolver.utils.files import write_json
from task_manager.background import BackgroundQuestioning, round_file
from task_manager.profile import TaskPreference
from task_manager.settings import Focus, QuestioningConfiguration
from task_manager.tasks import read_objectives

logger = logging.getLogger(__name__)

RECORD = "rounds.json"


@dataclass(slots=True)
class SealRound:
    """A started round: its training step, `turn` (the step divided by `every`), the number of its file, its request,
    and whether it made no task."""

    step: int
    turn: int
    number: int
    weaknesses: list[dict[str, Any]]
    focus: list[dict[str, Any]]
    failed: bool = False


class ClosedLoop:
    """The loop of one environment. `folder` holds the rounds' configurations, logs and `rounds.json`. Raises ValueError
    if that record cannot be read."""

    def __init__(self, settings: SealSettings, configuration: QuestioningConfiguration, folder: Path) -> None:
        self._settings, self._target = settings, configuration.task_manager.train_data_path
        self._signals, self._window = Signals(), WeaknessWindow(self._settings.window_steps)
        self._background = BackgroundQuestioning(configuration, folder)
        self._path = folder / RECORD
        self._rounds = _read(self._path)
        self._made: dict[str, int] = {}
        for one in self._rounds:
            if self._is_finished(one):
                self._take(one, read_objectives(round_file(self._target, one.number)))

    @property
    def mastered(self) -> set[str]:
        return self._signals.mastered()

    def record(self, step: int, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        self._signals.record(trajectories)
        self._window.record(step, trajectories)
        graded = [one for one in trajectories if one.outcome is not None]
        won = [one.outcome.success for one in graded if one.outcome is not None and one.task.task_id in self._made]
        metrics: dict[str, float] = {name: float(count) for name, count in self._signals.counts().items()}
        metrics |= {
            "weaknesses": float(len(self._window.weaknesses(self._signals))),
            "rounds": float(len(self._rounds)),
            "failed_rounds": float(sum(one.failed for one in self._rounds)),
            "made": float(len(self._made)),
        }
        if graded:
            metrics["share_in_step"] = len(won) / len(graded)
        if won:
            metrics["success_on_made"] = sum(won) / len(won)
        return {f"closed_loop/{name}": value for name, value in metrics.items()}

    def end_step(self, step: int, preference: Callable[[], TaskPreference]) -> list[Task]:
        """Return the tasks of a finished round, and start the next round if it is due.

        `preference` gives the preferences for new tasks when a round starts. After a resume, an unfinished round starts
        again at its step.
        """
        made = self._collect()
        if self._background.is_running:
            return made
        waiting = next((one for one in self._rounds if not one.failed and not self._is_finished(one)), None)
        if waiting is not None:
            if step >= waiting.step:
                self._start(waiting, preference)
        elif (turn := step // self._settings.every) > max((one.turn for one in self._rounds), default=0):
            self._begin(step, turn, preference)
        return made

    @property
    def made(self) -> list[str]:
        return sorted(self._made, key=lambda task_id: -self._made[task_id])

    def stop(self) -> None:
        self._background.stop()

    def state_dict(self) -> dict[str, Any]:
        return {
            "signals": self._signals.state_dict(),
            "window": self._window.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._signals.load_state_dict(state["signals"])
        self._window.load_state_dict(state["window"])

    def _begin(self, step: int, turn: int, preference: Callable[[], TaskPreference]) -> None:
        weaknesses = self._window.weaknesses(self._signals)
        focus = focused(weaknesses, self._settings.budget_tasks)
        if not focus:
            return
        told = [one.to_dict() for one in weaknesses]
        number = self._background.next_number
        begun = SealRound(step, turn, number, told, [one.model_dump(mode="json") for one in focus])
        self._rounds.append(begun)
        # Write the request before the process starts: a killed run repeats it.
        self._write()
        self._start(begun, preference)

    def _start(self, begun: SealRound, preference: Callable[[], TaskPreference]) -> None:
        focus = [Focus.model_validate(one) for one in begun.focus]
        self._background.start(preference(), focus, self._settings.budget_tasks)
        names = ", ".join(str(one["name"]) for one in begun.weaknesses[:3])
        logger.info("new tasks are made against %d weaknesses: %s", len(begun.weaknesses), names)

    def _collect(self) -> list[Task]:
        made = self._background.collect()
        if made is None:
            return []
        begun = self._rounds[-1]
        if made:
            self._take(begun, made)
        else:
            begun.failed = True
            self._write()
        return made

    def _take(self, begun: SealRound, tasks: Sequence[Task]) -> None:
        self._made |= {task.task_id: begun.number for task in tasks}

    def _is_finished(self, begun: SealRound) -> bool:
        return not begun.failed and round_file(self._target, begun.number).exists()

    def _write(self) -> None:
        write_json(self._path, {"rounds": [asdict(one) for one in self._rounds]})


def _read(path: Path) -> list[SealRound]:
    if not path.exists():
        return []
    try:
        return [SealRound(**one) for one in json.loads(path.read_text(encoding="utf-8"))["rounds"]]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: is no record of rounds ({error}); move the folder away to begin anew") from error

"""Background synthesis: runs the task pipeline in a subprocess between training steps.

A round's tasks go to `<train_data_path>.round<k>` and join the mixture at the next epoch. A resumed run reads all
finished rounds.
"""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from agentevolver.types import Task
from agentevolver.utils.files import move, write_text
from task_manager.profile import TaskPreference, profile_for, save_profile
from task_manager.settings import Focus, QuestioningConfiguration
from task_manager.tasks import read_objectives

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 20.0


def round_file(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.round{number}")


def round_files(path: Path) -> list[Path]:
    found = {
        int(suffix): file
        for file in path.parent.glob(path.name + ".round*")
        if (suffix := file.name.rpartition(".round")[2]).isdigit()
    }
    return [found[number] for number in sorted(found)]


class BackgroundQuestioning:
    """Starts rounds of synthesis and collects their tasks."""

    def __init__(self, configuration: QuestioningConfiguration, folder: Path) -> None:
        # The subprocess has its own journal, models and budget. If it fails, training goes on with the tasks it has.
        self._configuration = configuration
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._target = Path()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def next_number(self) -> int:
        # A failed round leaves no file, so its number is used again.
        return len(round_files(self._configuration.task_manager.train_data_path)) + 1

    def is_due(self, epoch: int) -> bool:
        every = self._configuration.task_manager.curriculum.synthesize_every_epochs
        return every > 0 and epoch > 0 and epoch % every == 0 and not self.is_running

    def start(
        self,
        preference: TaskPreference | None = None,
        focus: Sequence[Focus] = (),
        target_tasks: int | None = None,
    ) -> None:
        """Start a round that targets the weaknesses in `focus`; raises RuntimeError if one is running.

        `target_tasks`: number of tasks to make; None means `curriculum.max_new_tasks`.
        """
        if self._process is not None:
            raise RuntimeError("a round of synthesis is running: collect it first")
        settings = self._configuration.task_manager
        done, number = round_files(settings.train_data_path), self.next_number
        self._target = round_file(settings.train_data_path, number)
        conf = self._write(number, done, preference, focus, target_tasks)
        log = (self._folder / f"round{number}.log").open("ab")
        with log:
            command = [sys.executable, "-m", "task_manager", "synthesize", "--settings", str(conf), "--verbose"]
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def collect(self) -> list[Task] | None:
        """Return a finished round's tasks (empty if it failed), or None if no round has finished."""
        if self._process is None or (status := self._process.poll()) is None:
            return None
        self._process = None
        if status != 0:
            logger.error("a round of synthesis failed with exit code %d; its log is in %s", status, self._folder)
        # The round writes under another name, so that a killed round is not taken for a finished one.
        unfinished = self._target.with_name(self._target.name + ".unfinished")
        if not unfinished.exists():
            return []
        move(unfinished, self._target)
        return read_objectives(self._target)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _write(
        self,
        number: int,
        done: list[Path],
        preference: TaskPreference | None,
        focus: Sequence[Focus],
        target_tasks: int | None,
    ) -> Path:
        settings = self._configuration.task_manager
        self._folder.mkdir(parents=True, exist_ok=True)
        profile = profile_for(self._configuration.env_service.env_type, settings.env_profile)
        profile_path = self._folder / f"round{number}.profile.json"
        save_profile(profile.with_preference(preference or profile.task_preference), profile_path)
        changes = {
            "env_profile": profile_path,
            "round": number,
            "n": max(1, settings.n),
            "target_tasks": settings.curriculum.max_new_tasks if target_tasks is None else target_tasks,
            "train_data_path": self._target.with_name(self._target.name + ".unfinished"),
            "store": self._folder / "store",
            "known_data_paths": tuple(path for path in (settings.train_data_path, *done) if path.exists()),
        }
        if focus:
            changes |= {"n": 1, "focus": tuple(focus)}
        section = settings.model_copy(update=changes)
        tree = self._configuration.model_copy(update={"task_manager": section}).model_dump(mode="json")
        path = self._folder / f"round{number}.yaml"
        write_text(path, OmegaConf.to_yaml(OmegaConf.create(_literal(tree))))
        return path


def _literal(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _literal(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_literal(value) for value in tree]
    # OmegaConf reads `\\${` as a literal `${`, so backslashes in front of one must be doubled too.
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", tree) if isinstance(tree, str) else tree

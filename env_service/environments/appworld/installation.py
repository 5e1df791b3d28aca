"""Where AppWorld is on this machine: the Python of its venv, and the root that holds its data.

Both come from the person who starts the service (`APPWORLD_PYTHON`, `APPWORLD_ROOT`, or what setup.sh makes by
default), never from a request. What is missing raises `AppworldNotInstalled`, whose message is the remedy.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[3]
_TASK_ID = re.compile(r"[A-Za-z0-9]+_[0-9]+")
SETUP = "bash env_service/environments/appworld/setup.sh"


CONFINEMENTS = ("namespaces", "landlock", "none")


def confinement() -> str:
    """Return what keeps an agent's code in (`APPWORLD_CONFINEMENT`, by default namespaces); raises
    AppworldMisconfigured."""
    kind = os.environ.get("APPWORLD_CONFINEMENT") or CONFINEMENTS[0]
    if kind not in CONFINEMENTS:
        raise AppworldMisconfigured(f"APPWORLD_CONFINEMENT={kind!r} is unknown; use one of {', '.join(CONFINEMENTS)}")
    return kind


class AppworldMisconfigured(RuntimeError):
    """A variable of the service has a value that means nothing."""


class AppworldNotInstalled(RuntimeError):
    """The venv or the data of AppWorld is missing."""


@dataclass(frozen=True, slots=True)
class Installation:
    """- `python`: the interpreter of the venv that holds the pip package `appworld`.
    - `root`: the folder whose `data/` holds tasks, base databases and API documentation.
    """

    python: Path
    root: Path

    @classmethod
    def find(cls) -> Installation:
        """Return the installation that the environment variables or the defaults name; raises AppworldNotInstalled."""
        python = Path(os.environ.get("APPWORLD_PYTHON") or _REPOSITORY / ".venvs" / "appworld" / "bin" / "python")
        root = (
            Path(os.environ.get("APPWORLD_ROOT") or Path.home() / ".cache" / "agentevolver" / "appworld")
            .expanduser()
            .resolve()
        )
        if not os.access(python, os.X_OK):
            raise AppworldNotInstalled(
                f"AppWorld is not installed: there is no {python}. Run `{SETUP}`, "
                "or set APPWORLD_PYTHON to the Python of a venv that has it."
            )
        if not (root / "data" / "tasks").is_dir():
            raise AppworldNotInstalled(
                f"AppWorld's data is missing: there is no {root / 'data' / 'tasks'}. Run `{SETUP} --data` "
                "(it calls `appworld download data`), or set APPWORLD_ROOT to the folder that holds `data/`."
            )
        return cls(python.absolute(), root)

    def task_ids(self, split: str, difficulty: int | None = None) -> list[str]:
        """Return the task ids of a data set in the order of its file, or those of one difficulty; raises ValueError if
        there is no file.

        Read from the data as the package does (`appworld.load_task_ids`), but without its interpreter: a list of tasks
        starts nothing and leaves nothing behind.
        """
        file = self.root / "data" / "datasets" / f"{split}.txt"
        if not file.is_file():
            raise ValueError(f"the data in {self.root / 'data'} has no data set {split!r}")
        ids = [line.strip().partition(":")[0] for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        return ids if difficulty is None else [task for task in ids if self._difficulty(task) == difficulty]

    def _difficulty(self, task_id: str) -> int:
        metadata = json.loads((self.root / "data" / "tasks" / task_id / "ground_truth" / "metadata.json").read_bytes())
        return int(metadata["difficulty"])

    def check_task(self, task_id: str) -> None:
        """Raise ValueError if there is no such task."""
        if not _TASK_ID.fullmatch(task_id):
            raise ValueError(f"{task_id!r} is no AppWorld task id; they look like 'fac291d_1'")
        if not (self.root / "data" / "tasks" / task_id / "specs.json").is_file():
            raise ValueError(f"AppWorld's data holds no task {task_id!r}")

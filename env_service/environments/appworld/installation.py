"""AppWorld on this machine: the Python of its venv, the root of its data, and the folders of episodes.

A request can set neither Python nor root: `APPWORLD_PYTHON` and `APPWORLD_ROOT` do. An episode's folder is locked by
its process. If that process is killed, the kernel frees the lock, and `sweep`, which runs when a fork server starts,
deletes the folder.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from agentevolver.utils.files import private_folder

log = logging.getLogger(__name__)

MAX_ROOT_CHARS = 48  # a socket's path may have 107 characters
_LOCK = "owner.lock"


def runtime_folder() -> Path:
    """Return this user's private folder for sockets, logs and episodes; raises PermissionError if others can enter
    it."""
    root = Path(tempfile.gettempdir()).resolve()
    if len(str(root)) > MAX_ROOT_CHARS:
        root = Path("/tmp")
    return private_folder(root / f"agentevolver-appworld-{os.getuid()}")


def _episodes() -> Path:
    folder = runtime_folder() / "episodes"
    folder.mkdir(exist_ok=True)
    return folder


class EpisodeFolder:
    """A locked folder of an episode."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(dir=_episodes()))
        self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def delete(self) -> None:
        """Remove the folder; a failure is logged and left to `sweep`."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        if self.path.exists():
            log.warning("could not delete all of %s", self.path)


def sweep() -> int:
    """Delete the folders of dead processes; return how many."""
    count = 0
    for folder in _episodes().iterdir():
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # being made or being deleted at this moment
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
            count += 1
        finally:
            os.close(lock)
    return count


_REPOSITORY = Path(__file__).resolve().parents[3]
_TASK_ID = re.compile(r"[A-Za-z0-9]+_[0-9]+")
SETUP = "bash env_service/environments/appworld/setup.sh"


CONFINEMENTS = ("namespaces", "landlock", "none")


def confinement() -> str:
    """Return the kind of confinement (`APPWORLD_CONFINEMENT`, default namespaces); raises AppworldMisconfigured."""
    kind = os.environ.get("APPWORLD_CONFINEMENT") or CONFINEMENTS[0]
    if kind not in CONFINEMENTS:
        raise AppworldMisconfigured(f"APPWORLD_CONFINEMENT={kind!r} is unknown; use one of {', '.join(CONFINEMENTS)}")
    return kind


class AppworldMisconfigured(RuntimeError):
    """A variable of the service has an invalid value."""


class AppworldNotInstalled(RuntimeError):
    pass


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
        """Return the task ids of a data set in file order, or those of one difficulty; raises ValueError without the
        file. Does not start AppWorld."""
        file = self.root / "data" / "datasets" / f"{split}.txt"
        if not file.is_file():
            raise ValueError(f"the data in {self.root / 'data'} has no data set {split!r}")
        ids = [line.strip().partition(":")[0] for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        return ids if difficulty is None else [task for task in ids if self._difficulty(task) == difficulty]

    def _difficulty(self, task_id: str) -> int:
        metadata = json.loads((self.root / "data" / "tasks" / task_id / "ground_truth" / "metadata.json").read_bytes())
        return int(metadata["difficulty"])

    def check_task(self, task_id: str) -> None:
        if not _TASK_ID.fullmatch(task_id):
            raise ValueError(f"{task_id!r} is no AppWorld task id; they look like 'fac291d_1'")
        if not (self.root / "data" / "tasks" / task_id / "specs.json").is_file():
            raise ValueError(f"AppWorld's data holds no task {task_id!r}")

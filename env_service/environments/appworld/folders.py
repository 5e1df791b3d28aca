"""Folders on disk: one for this user's sockets and logs, and in it one for each episode, deleted when the episode is
closed.

An episode's folder is locked by the process that owns it. If that process is killed, the kernel frees the lock, and
`sweep`, which runs whenever a fork server starts, deletes the folder.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from pathlib import Path

from agentevolver.utils.files import private_folder

log = logging.getLogger(__name__)

MAX_ROOT_CHARS = 48  # a socket's path may have 107 characters
_LOCK = "owner.lock"


def runtime_folder() -> Path:
    """Return the folder for sockets, logs and episodes, made for this user alone; raises PermissionError if it is
    not."""
    root = Path(tempfile.gettempdir()).resolve()
    if len(str(root)) > MAX_ROOT_CHARS:
        root = Path("/tmp")
    return private_folder(root / f"agentevolver-appworld-{os.getuid()}")


def _episodes() -> Path:
    folder = runtime_folder() / "episodes"
    folder.mkdir(exist_ok=True)
    return folder


class EpisodeFolder:
    """A new, locked, empty folder; `delete` removes it with all it holds."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(dir=_episodes()))
        self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def delete(self) -> None:
        """Remove the folder. What cannot be removed is logged and left to `sweep`."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        if self.path.exists():
            log.warning("could not delete all of %s", self.path)


def sweep() -> int:
    """Delete the folders of episodes whose process has died; return how many."""
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

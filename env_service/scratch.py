"""Folders for a running service's sockets and logs: named after their process, removed with it, swept up after a
kill."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "env_service-"
SOCKET_CHARS = 107
OWN_CHARS = len(f"/{PREFIX}4194304-12345678")


def new_folder(inside: int) -> str:
    """Return a new folder that only this user can enter; folders of services that no longer live are removed on the
    way.

    It is in the usual place for temporary files (a run's own folder, which goes with the run even if this process is
    killed), or in /tmp where that path is too long for a socket.

    Args:
        inside: characters of the longest path of a socket in it, from the slash on.
    """
    root = tempfile.gettempdir()
    if len(root) + OWN_CHARS + inside > SOCKET_CHARS:
        root = "/tmp"
    for stale in Path(root).glob(f"{PREFIX}*"):
        owner = stale.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            remove_folder(str(stale))
    return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root)


def remove_folder(path: str | None) -> None:
    """Remove a folder as far as possible: one that belongs to somebody else, or that is being written to, is left to
    the next sweep."""
    if path is not None:
        shutil.rmtree(path, ignore_errors=True)

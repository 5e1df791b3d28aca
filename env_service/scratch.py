"""Folders for a running service's sockets and logs: named after their process, removed with it, swept up after a kill."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "env_service-"
MAX_ROOT_CHARS = 10  # the path of a Unix socket may have 107 characters; our folder takes up to 29 of them, and Ray up to 68


def new_folder() -> str:
    """Return a new folder that only this user can enter; folders of services that no longer live are removed on the way."""
    root = tempfile.gettempdir()
    if len(root) > MAX_ROOT_CHARS:
        root = "/tmp"
    for stale in Path(root).glob(f"{PREFIX}*"):
        owner = stale.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            remove_folder(str(stale))
    return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root)


def remove_folder(path: str | None) -> None:
    """Remove a folder as far as possible: one that belongs to somebody else, or that is being written to, is left to the next sweep."""
    if path is not None:
        shutil.rmtree(path, ignore_errors=True)

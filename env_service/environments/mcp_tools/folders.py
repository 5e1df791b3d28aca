"""A folder for each instance. It goes with the instance; what a killed one left is removed by a later one, a day
after."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "mcp-instance-"
STALE_AFTER_S = 24 * 3600.0


def new_folder() -> Path:
    """Return a new folder that only this user can enter."""
    _sweep(Path(tempfile.gettempdir()))
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))


def _sweep(root: Path) -> None:
    """Remove folders whose process is gone; the age protects those of another pid namespace that shares the disk."""
    for folder in root.glob(f"{PREFIX}*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        try:
            old = time.time() - folder.stat().st_mtime > STALE_AFTER_S
        except OSError:  # somebody else removed it in between
            continue
        if old and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)

"""The folder where this user's processes on this host meet, whatever run they belong to."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def runtime_folder(root: Path = Path("/tmp")) -> Path:
    """Return the private folder of this user, made if it is missing (mode 0700).

    It does not follow TMPDIR, which the launcher sets for each run.

    Raises:
        OSError: it cannot be made, or is not a folder of this user's alone.
    """
    folder = root / f"agentevolver-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a private folder of this user; remove it")
    return folder

"""SQLite files that threads and processes share: opened in WAL mode, with a bounded wait for a lock."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Literal


def open_shared(
    path: Path | None,
    schema: str,
    *,
    wait_s: float = 10.0,
    synchronous: Literal["OFF", "NORMAL"] = "NORMAL",
) -> sqlite3.Connection:
    """Open or create a database; raises sqlite3.Error and OSError. Statements outside of a transaction commit at once.

    Args:
        path: its file, whose folder is created; None: in memory.
        schema: a statement that creates the table if it is missing.
        wait_s: how long to wait for another's write.
        synchronous: NORMAL loses nothing to a killed process, and the latest writes to a power loss; OFF may lose all.
    """
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    file = sqlite3.connect(path or ":memory:", timeout=wait_s, isolation_level=None, check_same_thread=False)
    try:
        file.execute("PRAGMA journal_mode=WAL")
        file.execute(f"PRAGMA synchronous={synchronous}")
        file.execute(schema)
    except sqlite3.Error:
        file.close()
        raise
    return file

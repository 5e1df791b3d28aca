"""SQLite files that threads and processes share: opened in WAL mode, with a bounded wait for a lock."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def open_shared(path: Path, schema: str, *, wait_s: float = 10.0) -> sqlite3.Connection:
    """Open or make a database and its table; raises sqlite3.Error and OSError, with nothing left open.

    Args:
        path: its file, whose folder is made.
        schema: a statement that makes a table if there is none.
        wait_s: how long another's write is waited for.

    Statements are transactions of their own unless one is begun. A killed process loses nothing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = sqlite3.connect(path, timeout=wait_s, isolation_level=None, check_same_thread=False)
    try:
        file.execute("PRAGMA journal_mode=WAL")
        file.execute("PRAGMA synchronous=NORMAL")
        file.execute(schema)
    except sqlite3.Error:
        file.close()
        raise
    return file

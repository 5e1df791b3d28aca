"""SQLite files that threads and processes share: WAL mode, with a bounded wait for a lock."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote


def read_only(path: Path, *, immutable: bool = False) -> str:
    """Return the URI of a database to read. If it is immutable, SQLite leaves no -wal or -shm file beside it."""
    return f"file:{quote(bytes(path.resolve()))}?mode=ro{'&immutable=1' if immutable else ''}"


# How long to wait for another writer.
WAIT_S = 10.0


def open_shared(path: Path, schema: str) -> sqlite3.Connection:
    """Open or create a database and its table; raises sqlite3.Error and OSError.

    `schema` is a `CREATE TABLE IF NOT EXISTS` statement.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # isolation_level=None: each statement is its own transaction unless one is begun.
    file = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
    try:
        file.execute("PRAGMA journal_mode=WAL")
        # With WAL a killed process loses nothing; only a power loss can take the last commits.
        file.execute("PRAGMA synchronous=NORMAL")
        file.execute(schema)
    except sqlite3.Error:
        file.close()
        raise
    return file

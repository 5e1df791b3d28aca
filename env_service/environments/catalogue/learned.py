"""Learnt associations of a catalogue: which query led to which tool in solved episodes.

An SQLite file beside the catalogue, shared by all processes of the service. Used only by instances with `learn`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from agentevolver.utils.sqlite import open_shared
from env_service.environments.catalogue.tools import default_folder

FILE_VARIABLE = "CATALOGUE_LEARNED"
MOST = 20_000
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS success (query TEXT NOT NULL, tool TEXT NOT NULL, times INTEGER NOT NULL, "
    "PRIMARY KEY (query, tool)) WITHOUT ROWID"
)


def learned_file() -> Path:
    return Path(os.environ.get(FILE_VARIABLE) or default_folder() / "learned.sqlite")


class Learned:
    """Counts of successes by (query, tool), at most `MOST` pairs."""

    def __init__(self, path: Path) -> None:
        """Open or create the file; raises RuntimeError for another kind of file."""
        try:
            self._file = open_shared(path, _SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise RuntimeError(f"{path} is no record of a catalogue's successes ({error}); delete it") from error

    def add(self, served: Iterable[tuple[str, str]]) -> None:
        for query, tool in served:
            self._file.execute(
                "INSERT INTO success SELECT ?, ?, 1 WHERE (SELECT COUNT(*) FROM success) < ? "
                "ON CONFLICT (query, tool) DO UPDATE SET times = times + 1",
                (query, tool, MOST),
            )

    def pairs(self) -> list[tuple[str, str, int]]:
        return list(self._file.execute("SELECT query, tool, times FROM success ORDER BY query, tool"))

    def close(self) -> None:
        self._file.close()

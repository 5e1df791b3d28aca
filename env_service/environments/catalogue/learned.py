"""Experience of a catalogue, learnt from success: which query led to which tool in episodes that were solved.

A file of SQLite beside the catalogue, shared by all processes of the service. Off unless an instance asks for it.
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
    """Return the file that `CATALOGUE_LEARNED` names, else `learned.sqlite` in the catalogue's folder."""
    return Path(os.environ.get(FILE_VARIABLE) or default_folder() / "learned.sqlite")


class Learned:
    """Successes by (query, tool), with how often; at most `MOST` pairs, further ones are not taken."""

    def __init__(self, path: Path) -> None:
        """Open or make the file; raises RuntimeError if it is something else."""
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

"""Label cache by trajectory hash, so that a trajectory is judged once, and the log of what was asked and answered.

The cache is in memory, and in a SQLite file where one is named, which several processes may share. It is a convenience:
when it cannot be read or written (locked for seconds, disk full, not a database) the labels are asked for again, and a
warning is logged once. The log is one JSON file a trajectory under `llm_evaluation_log_dir`.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from advantage_processor.labels import StepLabel
from agentevolver.types import Attribution, Trajectory
from agentevolver.utils.files import whole
from agentevolver.utils.sqlite import open_shared

logger = logging.getLogger(__name__)

CAPACITY = 20_000
LOCK_WAIT_S = 2.0
_LABELS = "CREATE TABLE IF NOT EXISTS labels (key TEXT PRIMARY KEY, labels BLOB NOT NULL) WITHOUT ROWID"


def trajectory_hash(*parts: Any) -> str:
    """Return a hash of JSON-ready values: everything that the judge is shown and how it is asked."""
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()


class LabelCache:
    """The labels of trajectories that were judged before.

    Args:
        path: the SQLite file; None keeps labels in memory alone.
        capacity: labelled trajectories kept in memory; the one unused for longest goes first.
    """

    def __init__(self, path: Path | None = None, *, capacity: int = CAPACITY) -> None:
        self._recent: OrderedDict[str, tuple[StepLabel, ...]] = OrderedDict()
        self._capacity = capacity
        self._path = path
        self._file: sqlite3.Connection | None = None
        self._broken = False

    def get(self, key: str) -> tuple[StepLabel, ...] | None:
        """Return the labels kept under a trajectory's hash, or None."""
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        row = self._execute("SELECT labels FROM labels WHERE key = ?", (key,))
        if row is None:
            return None
        try:
            labels = tuple(StepLabel(**entry) for entry in orjson.loads(row[0]))
        except (orjson.JSONDecodeError, TypeError):  # written by something else: as good as not there
            return None
        self._remember(key, labels)
        return labels

    def put(self, key: str, labels: Sequence[StepLabel]) -> None:
        """Keep the labels of a trajectory."""
        self._remember(key, tuple(labels))
        self._execute("INSERT OR REPLACE INTO labels VALUES (?, ?)", (key, orjson.dumps(list(labels))))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _remember(self, key: str, labels: tuple[StepLabel, ...]) -> None:
        self._recent[key] = labels
        self._recent.move_to_end(key)
        if len(self._recent) > self._capacity:
            self._recent.popitem(last=False)

    def _execute(self, statement: str, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Run a statement against the file and return its first row; None without a file, or when it fails."""
        if self._path is None or self._broken:
            return None
        try:
            if self._file is None:
                self._file = open_shared(self._path, _LABELS, wait_s=LOCK_WAIT_S)
            row: tuple[Any, ...] | None = self._file.execute(statement, values).fetchone()
        except (sqlite3.Error, OSError) as error:
            logger.warning("the label cache %s is not used any more, labels are asked for again: %s", self._path, error)
            self._broken = True
            return None
        return row


logger = logging.getLogger(__name__)


class ExchangeLog:
    """Log of exchanges: `step_<n>/<trajectory id>.json`, written whole or not at all.
    What cannot be written is said once and left out.

    Args:
        directory: None writes nothing.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._failed = False

    def write(
        self, step: int, trajectory: Trajectory, attribution: Attribution, exchanges: Sequence[Mapping[str, Any]]
    ) -> None:
        """Keep the record of a trajectory that was to be labelled, be it labelled, skipped or failed."""
        if self._directory is None:
            return
        record = {
            "trajectory_id": trajectory.trajectory_id,
            "task_id": trajectory.task.task_id,
            "step": step,
            "time": round(time.time(), 3),
            "outcome": trajectory.outcome.to_dict() if trajectory.outcome is not None else None,
            "attribution": attribution.to_dict(),
            "exchanges": list(exchanges),
        }
        path = self._directory / f"step_{step:06d}" / f"{trajectory.trajectory_id.replace('/', '-')}.json"
        try:
            with whole(path, durable=False) as draft:
                draft.write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2))
        except OSError as error:
            if not self._failed:
                logger.warning(
                    "the records of label calls cannot be written to %s, they are left out: %s", self._directory, error
                )
            self._failed = True

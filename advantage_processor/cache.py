"""Label cache by trajectory hash, and the log of label calls."""

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
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()


class LabelCache:
    """Labels of trajectories that were judged before, in memory and optionally in a SQLite file that processes may
    share."""

    def __init__(self, path: Path | None = None, *, capacity: int = CAPACITY) -> None:
        self._recent: OrderedDict[str, tuple[StepLabel, ...]] = OrderedDict()
        self._capacity = capacity
        self._path = path
        self._file: sqlite3.Connection | None = None
        self._broken = False

    def get(self, key: str) -> tuple[StepLabel, ...] | None:
        """Return the labels, or None."""
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        # The file is a convenience: if it is locked, full or damaged, labels are asked for again.
        row = self._execute("SELECT labels FROM labels WHERE key = ?", (key,))
        if row is None:
            return None
        try:
            labels = tuple(StepLabel(**entry) for entry in orjson.loads(row[0]))
        except (orjson.JSONDecodeError, TypeError):  # not written by this version
            return None
        self._remember(key, labels)
        return labels

    def put(self, key: str, labels: Sequence[StepLabel]) -> None:
        self._remember(key, tuple(labels))
        self._execute("INSERT OR REPLACE INTO labels VALUES (?, ?)", (key, orjson.dumps(list(labels))))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _remember(self, key: str, labels: tuple[StepLabel, ...]) -> None:
        self._recent[key] = labels
        self._recent.move_to_end(key)
        if len(self._recent) > self._capacity:
            self._recent.popitem(last=False)

    def _execute(self, statement: str, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Run a statement and return its first row; None without a file, or if it fails."""
        if self._path is None or self._broken:
            return None
        try:
            if self._file is None:
                self._file = open_shared(self._path, _LABELS, wait_s=LOCK_WAIT_S)
            row: tuple[Any, ...] | None = self._file.execute(statement, values).fetchone()
        except (sqlite3.Error, OSError) as error:
            logger.warning("the label cache %s failed and is switched off: %s", self._path, error)
            self._broken = True
            return None
        return row


logger = logging.getLogger(__name__)


class ExchangeLog:
    """Log of label calls in `step_<n>/<trajectory id>.json`; None writes nothing. Write errors are logged once."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._failed = False

    def write(
        self, step: int, trajectory: Trajectory, attribution: Attribution, exchanges: Sequence[Mapping[str, Any]]
    ) -> None:
        """Log a trajectory, whether it was labelled, skipped or failed."""
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
                logger.warning("cannot write the log of label calls to %s: %s", self._directory, error)
            self._failed = True

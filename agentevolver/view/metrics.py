"""Metrics of a run by name, and language model usage by role.

The metrics file is read once and kept as columns of 8-byte numbers.
"""

from __future__ import annotations

import sqlite3
import threading
from array import array
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from agentevolver.utils.files import GrowingFile
from agentevolver.utils.sqlite import read_only
from agentevolver.view.experiment import Experiment, UnreadableFile


@dataclass(slots=True)
class Column:
    """Values of one metric, with the indices of their records."""

    rows: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


class RunMetrics:
    def __init__(self, path: Path) -> None:
        self._file = GrowingFile(path)
        self._lock = threading.Lock()
        self._columns: dict[str, Column] = {}
        self._steps = array("d")
        self._times = array("d")
        self._generation = 0

    def names(self) -> list[str]:
        with self._lock:
            self._refresh()
            return sorted(self._columns)

    def read(self, names: Sequence[str], *, generation: int = 0, since: int = 0) -> dict[str, Any]:
        """Return metrics by name.

        Args:
            names: exact names, or prefixes that end in `*`.
            generation: value of the last answer; all records are returned if it has changed.
            since: number of records that the caller has.

        Returns:
            `{generation, since, steps, times, series: {name: [number or None]}, broken}` of the records after
                `since`.
        """
        with self._lock:
            self._refresh()
            first = since if generation == self._generation and 0 <= since <= len(self._steps) else 0
            chosen = sorted({match for name in names for match in self._matching(name)})
            return {
                "generation": self._generation,
                "since": first,
                "steps": self._steps[first:].tolist(),
                "times": self._times[first:].tolist(),
                "series": {name: self._dense(self._columns[name], first) for name in chosen},
                "broken": self._file.broken,
            }

    def _matching(self, name: str) -> list[str]:
        if name.endswith("*"):
            return [known for known in self._columns if known.startswith(name[:-1])]
        return [name] if name in self._columns else []

    def _dense(self, column: Column, first: int) -> list[float | None]:
        out: list[float | None] = [None] * (len(self._steps) - first)
        # From the end: a poll asks for the last records only.
        for row, value in zip(reversed(column.rows), reversed(column.values), strict=True):
            if row < first:
                break
            out[row - first] = value
        return out

    def _refresh(self) -> None:
        lines = self._file.read()
        for line in lines:
            if self._file.generation != self._generation:
                self._forget()
            self._take(line.value)
        if self._file.generation != self._generation:
            self._forget()

    def _forget(self) -> None:
        self._generation = self._file.generation
        self._columns, self._steps, self._times = {}, array("d"), array("d")

    def _take(self, record: dict[str, Any]) -> None:
        step, when = record.get("step"), record.get("time")
        if not _is_number(step):
            self._file.broken += 1
            return
        row = len(self._steps)
        self._steps.append(step)
        self._times.append(when if _is_number(when) else 0.0)
        for name, value in record.items():
            if name not in ("step", "time") and _is_number(value):
                column = self._columns.setdefault(name, Column())
                column.rows.append(row)
                column.values.append(value)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


COLUMNS = ("role", "calls", "prompt_tokens", "completion_tokens", "cost")
BUSY_S = 2.0


def usage(experiment: Experiment) -> dict[str, Any]:
    """Return `{exists, roles, budget}`, with calls, tokens and cost of each role. Raises UnreadableFile."""
    path = _ledger(experiment)
    budget = experiment.setting("llm", "budget") or {}
    if not path.is_file():
        return {"exists": False, "roles": [], "budget": budget}
    try:
        with closing(sqlite3.connect(read_only(path), uri=True, timeout=BUSY_S)) as db:
            rows = db.execute(f"SELECT {', '.join(COLUMNS)} FROM usage ORDER BY cost DESC, calls DESC").fetchall()
    except sqlite3.Error as error:
        raise UnreadableFile(f"{path.name} cannot be read: {error}") from error
    return {"exists": True, "roles": [dict(zip(COLUMNS, row, strict=True)) for row in rows], "budget": budget}


def _ledger(experiment: Experiment) -> Path:
    own = experiment.setting("llm", "ledger")
    return Path(str(own)) if own else experiment.folder / "llm_usage.sqlite"

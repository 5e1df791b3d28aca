"""A workspace's vectors in memory, kept in step with the file: what a search reads.

Holds for each experience its vector, its scope and the tasks it was distilled from, and nothing else; texts are read
from the file when they have been found. It only ever takes over whole committed states, so that a search sees no half
of a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from experience_manager.index import Mask, VectorIndex, Vectors
from experience_manager.places import Scopes

# Rows that no longer count are swept out once there are more of them than this, and than half of the others.
SWEEP_ABOVE = 1024
TAKEN_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Where:
    """Which experiences may be found: those that hold in a place which `context` names (None: any), and none distilled
    from a task of `not_from`."""

    context: str | None = None
    not_from: tuple[str, ...] = ()


class DamagedVector(ValueError):
    """A stored vector has not the length that it should have."""


class Snapshot:
    """One workspace as of `revision`, in the `generation` of the store whose revisions those are: a restore begins
    another."""

    def __init__(self, workspace: str, dimension: int, hnsw_above: int | None, generation: str = "") -> None:
        self.workspace = workspace
        self.generation = generation
        self.revision = 0
        self.index = VectorIndex(dimension, hnsw_above=hnsw_above)
        self.seqs = np.zeros(0, dtype=np.int64)
        self.alive: Mask = np.zeros(0, dtype=np.bool_)
        self._codes = np.zeros(0, dtype=np.int64)
        self._scopes = Scopes()
        self._row_of: dict[int, int] = {}
        self._tasks_of: dict[int, tuple[str, ...]] = {}
        self._rows_of_task: dict[str, set[int]] = {}

    @property
    def needs_sweep(self) -> bool:
        """Whether so many rows no longer count that it is better to load anew."""
        dead = len(self.alive) - len(self._row_of)
        return dead > max(SWEEP_ABOVE, len(self._row_of) // 2)

    def can_follow(self, dimension: int, generation: str, revision: int) -> bool:
        """Whether what was committed since can be taken over; if not, it has to be loaded anew."""
        is_same = self.index.dimension == dimension and self.generation == generation and self.revision <= revision
        return is_same and not self.needs_sweep

    def follow(self, db: sqlite3.Connection, revision: int) -> None:
        """Take over what was committed up to `revision`, inside a transaction of `db`; raises DamagedVector."""
        since = (self.workspace, self.revision)
        for (seq,) in db.execute("SELECT seq FROM removed WHERE workspace = ? AND revision > ?", since):
            self._remove(seq)
        changed = db.execute(
            "SELECT seq, id, scope, task_ids, vector FROM records WHERE workspace = ? AND revision > ? ORDER BY seq",
            since,
        )
        self._take(changed)
        self.revision = revision

    def allowed(self, where: Where) -> Mask:
        """Return which rows a search may find, (n)."""
        mask = self.alive.copy()
        if where.context is not None:
            mask &= self._scopes.named_by(where.context)[self._codes]
        for task in where.not_from:
            for row in self._rows_of_task.get(task, ()):
                mask[row] = False
        return mask

    def covering(self, scope: str) -> Mask:
        """Return the rows of the experiences that hold in all places of a scope, (n); those that hold everywhere only
        if it does."""
        return self.alive & self._scopes.covering(scope)[self._codes]

    def _take(self, rows: Iterable[Any]) -> None:
        """Take over rows, so many at a time that loading needs little more memory than what is kept."""
        length = 4 * self.index.dimension
        seqs: list[int] = []
        codes: list[int] = []
        vectors: list[Vectors] = []

        def append() -> None:
            self.index.add(np.stack(vectors))
            self.seqs = np.concatenate([self.seqs, np.array(seqs, dtype=np.int64)])
            self._codes = np.concatenate([self._codes, np.array(codes, dtype=np.int64)])
            self.alive = np.concatenate([self.alive, np.ones(len(seqs), dtype=np.bool_)])
            for taken in (seqs, codes, vectors):
                taken.clear()

        for seq, identifier, scope, task_ids, blob in rows:
            if len(blob) != length:
                raise DamagedVector(f"the vector of experience {identifier} has {len(blob)} bytes, expected {length}")
            vector = np.frombuffer(blob, dtype=np.float32)
            known = self._row_of.get(seq)
            if known is not None and np.array_equal(self.index.vectors()[known], vector):
                self._codes[known] = self._scopes.code(scope)
                self._set_tasks(seq, known, orjson.loads(task_ids))
                continue
            self._remove(seq)
            row = len(self.alive) + len(seqs)
            self._row_of[seq] = row
            self._set_tasks(seq, row, orjson.loads(task_ids))
            seqs.append(seq)
            codes.append(self._scopes.code(scope))
            vectors.append(vector)
            if len(seqs) == TAKEN_AT_ONCE:
                append()
        if seqs:
            append()

    def _remove(self, seq: int) -> None:
        row = self._row_of.pop(seq, None)
        if row is not None:
            self.alive[row] = False
            self._set_tasks(seq, row, ())

    def _set_tasks(self, seq: int, row: int, tasks: Iterable[str]) -> None:
        for task in self._tasks_of.pop(seq, ()):
            self._rows_of_task[task].discard(row)
        self._tasks_of[seq] = tuple(tasks)
        for task in self._tasks_of[seq]:
            self._rows_of_task.setdefault(task, set()).add(row)

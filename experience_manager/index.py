"""A workspace's snapshot of the file in memory, for search."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from agentevolver.utils.vectors import Mask, VectorIndex, Vectors
from experience_manager.experience import Scopes

# Queries per matrix product: 64 x 100 000 similarities are 26 MB.
BLOCK = 64
# The snapshot is loaded anew once dead rows exceed both this number and half of the live rows.
SWEEP_ABOVE = 1024
TAKEN_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Where:
    """Filter of a search."""

    context: str | None = None  # only experiences whose scope this text names; None: all
    not_from: tuple[str, ...] = ()  # no experiences of these tasks


class DamagedVector(ValueError):
    pass


class Snapshot:
    """Vectors, scopes and source tasks of one workspace at a revision; a restore begins a new generation."""

    def __init__(self, workspace: str, dimension: int, generation: str = "") -> None:
        self.workspace = workspace
        self.generation = generation
        self.revision = 0
        self.index = VectorIndex(dimension)
        self.seqs = np.zeros(0, dtype=np.int64)
        self.alive: Mask = np.zeros(0, dtype=np.bool_)
        self._codes = np.zeros(0, dtype=np.int64)
        self._scopes = Scopes()
        self._row_of: dict[int, int] = {}
        self._tasks_of: dict[int, tuple[str, ...]] = {}
        self._rows_of_task: dict[str, set[int]] = {}

    def can_follow(self, dimension: int, generation: str, revision: int) -> bool:
        """Return whether `follow` can bring the snapshot up to date; False if loading anew is right or cheaper."""
        is_same = self.index.dimension == dimension and self.generation == generation and self.revision <= revision
        # With many dead rows, a fresh load is cheaper than masking them in every search.
        dead = len(self.alive) - len(self._row_of)
        return is_same and dead <= max(SWEEP_ABOVE, len(self._row_of) // 2)

    def follow(self, db: sqlite3.Connection, revision: int) -> None:
        """Read all commits up to `revision`, inside a transaction of `db`; raises DamagedVector."""
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
        mask = self.alive.copy()
        if where.context is not None:
            mask &= self._scopes.named_by(where.context)[self._codes]
        for task in where.not_from:
            for row in self._rows_of_task.get(task, ()):
                mask[row] = False
        return mask

    def covering(self, scope: str) -> Mask:
        return self.alive & self._scopes.covering(scope)[self._codes]

    def similarities(self, queries: Vectors) -> Iterator[Vectors]:
        """Yield each query's similarities (n) to all rows, as a view that the next one may overwrite."""
        vectors = self.index.vectors()
        for start in range(0, len(queries), BLOCK):
            yield from queries[start : start + BLOCK] @ vectors.T

    def _take(self, rows: Iterable[Any]) -> None:
        # Appends in blocks, so that loading needs little more memory than the result.
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

"""Deduplication on insert, inside the store's transaction: an experience is new, or merged into an existing one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentevolver.utils.vectors import Mask, Vectors, nearest
from experience_manager.database import COLUMNS, SELECT, blob, from_row, to_row, update
from experience_manager.experience import Experience, Scopes, covers, join
from experience_manager.index import Snapshot

# Vectors of equal texts differ by rounding only. If only when_to_use is embedded, many experiences share a vector:
# TWINS of them are compared in full.
SAME_TEXT, TWINS = 0.9999, 32
# Whether two experiences are duplicates: (standing, newcomer, cosine of their vectors).
IsSame = Callable[[Experience, Experience, float], bool]


@dataclass(frozen=True, slots=True)
class Added:
    """Result of an insert: each newcomer's final id, and counts; `outvoted` newcomers replaced the standing wording."""

    ids: tuple[str, ...]
    inserted: int
    joined: int
    outvoted: int


@dataclass(slots=True)
class MergeDraft:
    experience: Experience
    seq: int | None  # None in the batch
    vector: Vectors | None  # None in the pool while the wording stands
    row: int = -1  # index in the batch


@dataclass(slots=True)
class _Batch:
    vectors: Vectors
    codes: NDArray[np.int64]
    drafts: list[MergeDraft] = field(default_factory=list)
    scopes: Scopes = field(default_factory=Scopes)

    def put(self, draft: MergeDraft, vector: Vectors | None = None) -> None:
        if draft.row < 0:
            draft.row = len(self.drafts)
            self.drafts.append(draft)
        self.codes[draft.row] = self.scopes.code(draft.experience.scope)
        if vector is not None:
            self.vectors[draft.row] = vector

    def near(self, vector: Vectors, scope: str, k: int) -> list[tuple[MergeDraft, float]]:
        cosines = self.vectors[: len(self.drafts)] @ vector
        inside = self.scopes.covering(scope)[self.codes[: len(self.drafts)]]
        return [(self.drafts[row], float(cosines[row])) for row in _near(cosines, k, inside, np.ones_like(inside))]


def _near(cosines: Vectors, k: int, inside: Mask, anywhere: Mask) -> list[int]:
    # Equal texts of other scopes are candidates too: they may be merged into one wider scope.
    same = np.flatnonzero((cosines >= SAME_TEXT) & anywhere)[:TWINS]
    return list(dict.fromkeys([*nearest(cosines, k, inside)[0].tolist(), *same.tolist()]))


class Merge:
    """Merges newcomers one by one with the pool and with each other, then writes the result."""

    def __init__(self, db: sqlite3.Connection, snapshot: Snapshot, is_same: IsSame | None, neighbours: int) -> None:
        self._db = db
        self._snapshot = snapshot
        self._is_same = is_same
        self._neighbours = neighbours
        self._known: dict[int, MergeDraft] = {}
        self._changed: dict[int, MergeDraft] = {}
        self._batch = _Batch(np.zeros((0, 0), dtype=np.float32), np.zeros(0, dtype=np.int64))
        self.inserted: list[MergeDraft] = []
        self.joined = 0
        self.outvoted = 0

    def place(self, newcomers: Sequence[Experience], vectors: Vectors) -> tuple[str, ...]:
        """Return the id under which each newcomer is stored."""
        near = self._near(newcomers, vectors) if self._is_same is not None else [()] * len(newcomers)
        self._batch = _Batch(np.zeros_like(vectors), np.zeros(len(vectors), dtype=np.int64))
        last = {newcomer.id: place for place, newcomer in enumerate(newcomers)}
        known: dict[str, MergeDraft] = {}
        for place in last.values():
            newcomer, vector = newcomers[place], vectors[place]
            if (there := self._of_id(newcomer)) is not None:
                # Distilled from the same rollouts before: the stored one keeps its counters and edits.
                self.joined += 1
                known[newcomer.id] = there
                continue
            draft = self._twin(newcomer, vector, near[place])
            if draft is None:
                draft = MergeDraft(newcomer, None, vector)
                self.inserted.append(draft)
                self._batch.put(draft, vector)
            else:
                self._join(draft, newcomer, vector)
            known[newcomer.id] = draft
        return tuple(known[newcomer.id].experience.id for newcomer in newcomers)

    def write(self, revision: int) -> None:
        for draft in self._changed.values():
            update(self._db, draft.experience, revision, draft.vector, reset=draft.vector is not None)
        for draft in self.inserted:
            workspace, identifier = draft.experience.workspace, draft.experience.id
            gone = "SELECT seq, workspace, ? FROM records WHERE workspace = ? AND id = ?"
            self._db.execute(f"INSERT INTO removed {gone}", (revision, workspace, identifier))
            self._db.execute("DELETE FROM records WHERE workspace = ? AND id = ?", (workspace, identifier))
        marks = ", ".join("?" * (len(COLUMNS) + 2))
        rows = [(*to_row(draft.experience), revision, blob(draft.vector)) for draft in self.inserted]
        self._db.executemany(f"INSERT INTO records ({SELECT}, revision, vector) VALUES ({marks})", rows)

    def _near(self, newcomers: Sequence[Experience], vectors: Vectors) -> Sequence[Sequence[tuple[int, float]]]:
        snapshot, inside = (
            self._snapshot,
            {scope: self._snapshot.covering(scope) for scope in {newcomer.scope for newcomer in newcomers}},
        )
        near = []
        for newcomer, cosines in zip(newcomers, snapshot.similarities(vectors), strict=True):
            rows = _near(cosines, self._neighbours, inside[newcomer.scope], snapshot.alive)
            near.append([(int(snapshot.seqs[row]), float(cosines[row])) for row in rows])
        return near

    def _twin(self, newcomer: Experience, vector: Vectors, near: Sequence[tuple[int, float]]) -> MergeDraft | None:
        """Return the experience to merge a newcomer into: the nearest duplicate in its scope, else one of equal
        wording, or None."""
        if self._is_same is None:
            return None
        drafts = [(self._of_pool(seq), cosine) for seq, cosine in near]
        drafts += self._batch.near(vector, newcomer.scope, self._neighbours)
        drafts = [
            (draft, cosine)
            for draft, cosine in sorted(drafts, key=lambda pair: -pair[1])
            if draft.experience.id != newcomer.id
        ]
        inside = [(draft, cosine) for draft, cosine in drafts if covers(draft.experience.scope, newcomer.scope)]
        for draft, cosine in inside[: self._neighbours]:
            if self._is_same(draft.experience, newcomer, cosine):
                return draft
        return next((draft for draft, _ in drafts if _may_widen(draft.experience, newcomer)), None)

    def _of_id(self, newcomer: Experience) -> MergeDraft | None:
        if self._is_same is None:
            return None
        key = (newcomer.workspace, newcomer.id)
        row = self._db.execute("SELECT seq FROM records WHERE workspace = ? AND id = ?", key).fetchone()
        return self._of_pool(row[0]) if row is not None else None

    def _of_pool(self, seq: int) -> MergeDraft:
        if seq not in self._known:
            row = self._db.execute(f"SELECT {SELECT} FROM records WHERE seq = ?", (seq,)).fetchone()
            self._known[seq] = MergeDraft(from_row(row), seq, None)
        return self._known[seq]

    def _join(self, draft: MergeDraft, newcomer: Experience, vector: Vectors) -> None:
        before = draft.experience
        draft.experience = join(before, newcomer)
        self.joined += 1
        if draft.experience.wording != before.wording:
            self.outvoted += 1
            draft.vector = vector
        if draft.seq is None:
            self._batch.put(draft, draft.vector)
        if draft.seq is not None:
            self._changed[draft.seq] = draft


def _may_widen(standing: Experience, newcomer: Experience) -> bool:
    # A person's text, or a pinned one, keeps its scope.
    own = standing.pinned or newcomer.pinned or standing.by_person or newcomer.by_person
    return standing.wording == newcomer.wording and not own

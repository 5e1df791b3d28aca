"""Newcomers among the experiences that are there: who is new, who is joined to whom. Part of the store's insert transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from experience_manager.index import Vectors
from experience_manager.record import Experience, join
from experience_manager.rows import COLUMNS, SELECT, blob, from_row, to_row, update
from experience_manager.snapshot import Snapshot

# Whether two experiences say the same, given the cosine of what is embedded of them: (standing, newcomer, cosine).
IsSame = Callable[[Experience, Experience, float], bool]


@dataclass(slots=True)
class Draft:
    """An experience of the pool or the batch while newcomers are joined to it.

    `seq` is None for one of the batch; `vector` is None for one of the pool whose wording stands.
    """

    experience: Experience
    seq: int | None
    vector: Vectors | None


class Merge:
    """Places newcomers one after the other, among the pool and each other, and writes what came of it."""

    def __init__(self, db: sqlite3.Connection, snapshot: Snapshot, is_same: IsSame | None, neighbours: int) -> None:
        self._db = db
        self._snapshot = snapshot
        self._is_same = is_same
        self._neighbours = neighbours
        self._known: dict[int, Draft] = {}
        self._changed: dict[int, Draft] = {}
        self.inserted: list[Draft] = []
        self.joined = 0
        self.outvoted = 0

    def place(self, newcomers: Sequence[Experience], vectors: Vectors) -> tuple[str, ...]:
        """Return the id under which each newcomer is now known."""
        near = self._near(newcomers, vectors) if self._is_same is not None else [()] * len(newcomers)
        ids = []
        by_id: dict[str, Draft] = {}
        for newcomer, vector, seqs in zip(newcomers, vectors, near, strict=True):
            draft = self._twin(newcomer, vector, seqs)
            if draft is None and newcomer.id in by_id:
                draft = by_id[newcomer.id]
                draft.experience, draft.vector = newcomer, vector
            elif draft is None:
                draft = by_id[newcomer.id] = Draft(newcomer, None, vector)
                self.inserted.append(draft)
            else:
                self._join(draft, newcomer, vector)
            ids.append(draft.experience.id)
        return tuple(ids)

    def write(self, revision: int) -> None:
        """Write inserts and changes, inside the transaction."""
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
        """Return for each newcomer its neighbours of the same scope in the pool: (seq, cosine), best first."""
        near: list[Sequence[tuple[int, float]]] = [()] * len(newcomers)
        by_scope: dict[str, list[int]] = {}
        for place, newcomer in enumerate(newcomers):
            by_scope.setdefault(newcomer.scope, []).append(place)
        for scope, places in by_scope.items():
            rows, cosines = self._snapshot.index.nearest(vectors[places], self._neighbours, self._snapshot.in_scope(scope))
            for place, found, values in zip(places, self._snapshot.seqs[rows].tolist(), cosines.tolist(), strict=True):
                near[place] = list(zip(found, values, strict=True))
        return near

    def _twin(self, newcomer: Experience, vector: Vectors, near: Sequence[tuple[int, float]]) -> Draft | None:
        """Return what says the same as a newcomer, the nearest first."""
        if self._is_same is None:
            return None
        drafts = [(self._of_pool(seq), cosine) for seq, cosine in near]
        own = [draft for draft in self.inserted if draft.experience.scope == newcomer.scope]
        if own:
            cosines = np.stack([draft.vector for draft in own if draft.vector is not None]) @ vector
            drafts += list(zip(own, cosines.tolist(), strict=True))
        for draft, cosine in sorted(drafts, key=lambda pair: -pair[1])[: self._neighbours]:
            if draft.experience.id != newcomer.id and self._is_same(draft.experience, newcomer, cosine):
                return draft
        return None

    def _of_pool(self, seq: int) -> Draft:
        if seq not in self._known:
            row = self._db.execute(f"SELECT {SELECT} FROM records WHERE seq = ?", (seq,)).fetchone()
            self._known[seq] = Draft(from_row(row), seq, None)
        return self._known[seq]

    def _join(self, draft: Draft, newcomer: Experience, vector: Vectors) -> None:
        before = draft.experience
        draft.experience = join(before, newcomer)
        self.joined += 1
        if draft.experience.wording != before.wording:
            self.outvoted += 1
            draft.vector = vector
        if draft.seq is not None:
            self._changed[draft.seq] = draft

"""Store of experiences: one SQLite file with workspaces, shared by threads, processes and experiments.

A method's change is on disk when it returns; if it raises, nothing has changed. One process writes at a time; readers
never wait and see whole transactions. Deduplication and insertion are one transaction. The file remembers its vectors'
encoder and refuses another. Every failure is a StoreError that names the file.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from agentevolver.utils.files import move
from agentevolver.utils.vectors import Vectors
from experience_manager.database import BUSY_S, SELECT, Database, Stamp, from_row, next_revision, stamp_of, update
from experience_manager.errors import EncoderMismatch, StoreCorrupt, StoreError, UnknownExperience
from experience_manager.experience import Experience, covers, places_in
from experience_manager.index import DamagedVector, Snapshot, Where
from experience_manager.merge import Added, IsSame, Merge

ANYWHERE = Where()
# Two states of a store are the same if these queries give the same rows.
_STATE = (
    "SELECT value FROM meta WHERE key = 'revision'",
    f"SELECT seq, revision, {SELECT}, vector FROM records ORDER BY seq",
    "SELECT * FROM credited ORDER BY workspace, source",
)
# fmt: off
EDITABLE = frozenset({
    "when_to_use", "content", "scope", "category", "validation_score", "confidence", "pinned", "author", "tags",
    "metadata",
})
# fmt: on


@dataclass(frozen=True, slots=True)
class Hit:
    """Search result; `similarity` is the cosine with the query."""

    experience: Experience
    similarity: float


@dataclass(frozen=True, slots=True)
class Count:
    uses: int = 0
    successes: int = 0
    compared: int = 0
    lift: float = 0.0


Order = Literal["created", "uses", "utility", "lift", "paired", "support"]
_ORDERS: dict[Order, str] = {
    "created": "created",
    "uses": "uses",
    "utility": "iif(uses, 1.0 * successes / uses, -1)",
    "lift": "iif(compared, lift_sum / compared, -2)",
    "paired": "iif(paired, paired_utility, -2)",
    "support": "support",
}


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of a workspace; `kinds` counts by category, `modified` is the last change or 0."""

    kinds: dict[str, int]
    pinned: int
    used: int
    uses: int
    successes: int
    compared: int
    lift: float
    places: int
    modified: float


class Store:
    """Experiences in a file: insert, search, edit, count, prune. Thread-safe; open one per process."""

    def __init__(self, path: Path, *, create: bool = True, busy_s: float = BUSY_S) -> None:
        self.path = path
        self.database = Database(path, create=create, busy_s=busy_s)
        self._snapshots: dict[str, Snapshot] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()

    def check(self) -> None:
        """Read the whole file; raises StoreCorrupt if it is damaged."""
        self.database.check()

    def copy_to(self, path: Path) -> None:
        """Write a copy of the store to `path`, which must not exist."""
        self.database.copy_to(path)

    def restore(self, path: Path, aside: Path) -> None:
        """Replace the content by the copy at `path`; save the present content to `aside`, overwriting that file.

        If both are equal, counters included, nothing is written.
        """
        if self.database.holds(path, _STATE):
            return
        draft = aside.with_name(f".{aside.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        self.copy_to(draft)
        move(draft, aside)
        self.database.restore(path)
        # Revision numbers repeat after a restore. The new generation tells other processes to reload their snapshots.
        with self.database.writing() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES ('generation', ?)", (secrets.token_hex(8),))
        self._snapshots.clear()

    @property
    def stamp(self) -> Stamp | None:
        """Encoder of the stored vectors, or None without vectors."""
        with self.database.reading() as db:
            return stamp_of(db)

    def require(self, stamp: Stamp) -> None:
        """Raise EncoderMismatch if the stored vectors come from another encoder."""
        with self.database.reading() as db:
            self._refuse_other(db, stamp)

    def workspaces(self) -> dict[str, int]:
        """Return the number of experiences per workspace."""
        with self.database.reading() as db:
            return dict(
                db.execute("SELECT workspace, count(*) FROM records GROUP BY workspace ORDER BY workspace").fetchall()
            )

    def get(self, workspace: str, identifier: str) -> Experience:
        """Return an experience by id or unique prefix; raises UnknownExperience."""
        with self.database.reading() as db:
            return self._get(db, workspace, identifier)

    def records(self, workspace: str) -> list[Experience]:
        """Return experiences in insertion order."""
        query = f"SELECT {SELECT} FROM records WHERE workspace = ? ORDER BY seq"
        with self.database.reading() as db:
            return [from_row(row) for row in db.execute(query, (workspace,))]

    def each(self, workspace: str) -> Generator[Experience]:
        """Stream one consistent state of a workspace in insertion order."""
        with self.database.apart() as db:
            for row in db.execute(f"SELECT {SELECT} FROM records WHERE workspace = ? ORDER BY seq", (workspace,)):
                yield from_row(row)

    def ranked(
        self,
        workspace: str,
        order: Order = "created",
        limit: int = -1,
        *,
        category: str | None = None,
        scope: str | None = None,
    ) -> tuple[list[Experience], int]:
        """Return the first experiences of a descending order (the older first on ties), and the number of matches.

        Args:
            order: experiences without uses (or comparisons) come last.
            limit: -1 for all.
            scope: only experiences that hold in all of these places.
        """
        condition, arguments = "workspace = ?", [workspace]
        for name, value in (("category = ?", category), ("covers(scope, ?)", scope)):
            if value is not None:
                condition, arguments = f"{condition} AND {name}", [*arguments, value]
        with self.database.apart() as db:
            db.create_function("covers", 2, covers, deterministic=True)
            (count,) = db.execute(f"SELECT count(*) FROM records WHERE {condition}", arguments).fetchone()
            # The inner query selects rows without reading the long columns.
            chosen = f"SELECT seq FROM records WHERE {condition} ORDER BY {_ORDERS[order]} DESC, seq LIMIT {int(limit)}"
            rows = db.execute(
                f"SELECT {SELECT} FROM records WHERE seq IN ({chosen}) ORDER BY {_ORDERS[order]} DESC, seq", arguments
            )
            return [from_row(row) for row in rows], int(count)

    def summary(self, workspace: str) -> Summary:
        query = """SELECT category, count(*), sum(pinned), sum(uses > 0), sum(uses), sum(successes), sum(iif(uses, \
compared, 0)),
            sum(iif(uses, lift_sum, 0)), max(modified) FROM records WHERE workspace = ? GROUP BY category"""
        with self.database.apart() as db:
            rows = db.execute(query, (workspace,)).fetchall()
            scopes = db.execute("SELECT DISTINCT scope FROM records WHERE workspace = ?", (workspace,)).fetchall()
        kinds = {row[0]: row[1] for row in rows}
        pinned, used, uses, successes, compared, lift = (sum(row[i] for row in rows) for i in range(2, 8))
        places = {place for (scope,) in scopes for place in places_in(scope)}
        modified = max((row[8] for row in rows), default=0.0)
        return Summary(kinds, pinned, used, uses, successes, compared, lift, len(places), modified)

    def known(self, workspace: str, identifiers: Iterable[str]) -> set[str]:
        """Return the subset of ids that exist."""
        query = "SELECT id FROM records WHERE workspace = ? AND id = ?"
        with self.database.reading() as db:
            return {i for i in identifiers if db.execute(query, (workspace, i)).fetchone() is not None}

    def search(self, workspace: str, query: Vectors, k: int, stamp: Stamp, where: Where = ANYWHERE) -> list[Hit]:
        """Return the k experiences nearest to a unit vector (d), best first; raises EncoderMismatch."""
        with self.database.reading() as db:
            self._refuse_other(db, stamp)
            snapshot = self._followed(db, workspace, stamp.dimension)
            rows, similarities = snapshot.index.search(query, k, snapshot.allowed(where))
            found = dict(sorted(zip(snapshot.seqs[rows].tolist(), similarities.tolist(), strict=True), key=_rank))
            marks = ", ".join("?" * len(found))
            texts = db.execute(f"SELECT seq, {SELECT} FROM records WHERE seq IN ({marks})", [*found])
            experiences = {row[0]: from_row(row[1:]) for row in texts}
        return [Hit(experiences[seq], similarity) for seq, similarity in found.items()]

    def add(
        self,
        workspace: str,
        newcomers: Sequence[Experience],
        vectors: Vectors,
        stamp: Stamp,
        is_same: IsSame | None,
        *,
        neighbours: int = 1,
        instead: bool = False,
    ) -> Added:
        """Insert experiences, merging each into a duplicate of its scope if there is one.

        Args:
            newcomers: if an id repeats, the last counts. A stored id is replaced, counters included, if `is_same` is
                None; otherwise the stored one stays.
            vectors: (n, d) unit vectors of the embedded texts.
            is_same: compares a newcomer with its nearest `neighbours`, including others of this call; None: no merging.
            instead: replace the whole workspace.
        """
        if len(newcomers) != len(vectors):
            raise ValueError(f"{len(newcomers)} experiences but {len(vectors)} vectors")
        with self.database.writing() as db:
            self._put_stamp(db, stamp)
            if instead:
                self.remove(db, workspace, "1", ())
            # Before the revision is raised, since the snapshot lacks the rows of this transaction.
            snapshot = self._followed(db, workspace, stamp.dimension)
            if instead:
                # It has followed deletions that may still be rolled back.
                del self._snapshots[workspace]
            merge = Merge(db, snapshot, is_same, neighbours)
            now = time.time()
            dated = [
                replace(e, workspace=workspace, created=e.created or now, modified=e.modified or now) for e in newcomers
            ]
            ids = merge.place(dated, vectors)
            merge.write(next_revision(db))
        return Added(ids, len(merge.inserted), merge.joined, merge.outvoted)

    def edit(
        self, workspace: str, identifier: str, changes: Mapping[str, Any], vector: Vectors | None, stamp: Stamp | None
    ) -> None:
        """Change fields of an experience; counters and provenance cannot be edited.

        Args:
            identifier: id or unique prefix.
            vector: (d), required with its `stamp` if an embedded text changes.
        """
        wrong = sorted(set(changes) - EDITABLE)
        if wrong:
            raise StoreError(f"{wrong[0]} cannot be edited; what can is {', '.join(sorted(EDITABLE))}")
        with self.database.writing() as db:
            before = self._get(db, workspace, identifier)
            changed = replace(before, **{**changes, "modified": time.time()})
            there = stamp_of(db)
            if stamp is not None:
                self._refuse_other(db, stamp)
            elif there is not None and changed.embedded_text(there.embedded_text) != before.embedded_text(
                there.embedded_text
            ):
                raise StoreError(f"{self.path}: the text of {before.id} is embedded, so its change needs a vector")
            update(db, changed, next_revision(db), vector)

    def delete(self, workspace: str, identifiers: Iterable[str] | None = None) -> int:
        """Delete experiences by id, or the whole workspace; return how many."""
        with self.database.writing() as db:
            if identifiers is None:
                return self.remove(db, workspace, "1", ())
            return sum(self.remove(db, workspace, "id = ?", (identifier,)) for identifier in identifiers)

    def prune(self, workspace: str, *, min_uses: int, min_utility: float, min_lift: float | None) -> int:
        """Delete often-used experiences that helped too little, except pinned ones; return how many.

        Args:
            min_uses: guided rollouts (for the lift: with unguided siblings) before an experience is judged.
            min_utility: least success rate.
            min_lift: least mean lift; None: lift does not count.
        """
        useless = "(uses >= ? AND uses > 0 AND successes < ? * uses)"
        harmful = "(compared >= ? AND compared > 0 AND lift_sum < ? * compared)"
        judged = f"{useless} OR {harmful}" if min_lift is not None else useless
        arguments = (min_uses, min_utility) + ((min_uses, min_lift) if min_lift is not None else ())
        with self.database.writing() as db:
            return self.remove(db, workspace, f"pinned = 0 AND ({judged})", arguments)

    def count(self, workspace: str, counts: Mapping[str, Count]) -> None:
        """Add to counters in one transaction; unknown ids are skipped."""
        rows = [(c.uses, c.successes, c.compared, c.lift, workspace, identifier) for identifier, c in counts.items()]
        if not rows:
            return
        # Incremented, never overwritten: other processes count at the same time.
        update = (
            "UPDATE records SET uses = max(0, uses + ?), successes = max(0, successes + ?), compared = max(0, "
            "compared + ?), "
            "lift_sum = lift_sum + ? WHERE workspace = ? AND id = ?"
        )
        with self.database.writing() as db:
            db.executemany(update, rows)

    def _followed(self, db: sqlite3.Connection, workspace: str, dimension: int) -> Snapshot:
        meta = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('revision', 'generation')").fetchall())
        revision, generation = int(meta["revision"]), meta.get("generation", "")
        snapshot = self._snapshots.pop(workspace, None)
        if snapshot is None or not snapshot.can_follow(dimension, generation, revision):
            snapshot = Snapshot(workspace, dimension, generation)
        try:
            snapshot.follow(db, revision)
        except DamagedVector as error:
            raise StoreCorrupt(
                f"{self.path}: {error}; delete it, or import the last export into a new store"
            ) from error
        self._snapshots[workspace] = snapshot
        return snapshot

    def _refuse_other(self, db: sqlite3.Connection, stamp: Stamp) -> None:
        there = stamp_of(db)
        if there is not None and there != stamp:
            dimension = f" ({stamp.dimension})" if stamp.dimension != there.dimension else ""
            raise EncoderMismatch(
                f"{self.path} holds {there.dimension}-dimensional vectors of {there.encoder} over "
                f"{there.embedded_text}, but the encoder "
                f"is {stamp.encoder}{dimension} over {stamp.embedded_text}: set exp_manager.encoder and embedded_text "
                "to the "
                "former, or export the store and import it into a new one (python -m experience_manager export, import)"
            )

    def _put_stamp(self, db: sqlite3.Connection, stamp: Stamp) -> None:
        self._refuse_other(db, stamp)
        values = {"encoder": stamp.encoder, "dimension": str(stamp.dimension), "embedded_text": stamp.embedded_text}
        db.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", values.items())

    def _get(self, db: sqlite3.Connection, workspace: str, identifier: str) -> Experience:
        query = f"SELECT {SELECT} FROM records WHERE workspace = ? AND id >= ? AND id < ? ORDER BY id LIMIT 2"
        found = (
            [from_row(row) for row in db.execute(query, (workspace, identifier, identifier + chr(0x10FFFF)))]
            if identifier
            else []
        )
        if len(found) == 1 or (found and found[0].id == identifier):
            return found[0]
        problem = "more than one experience begins with" if found else "there is no experience"
        raise UnknownExperience(f"{self.path}: {problem} {identifier!r} in workspace {workspace!r}")

    def remove(self, db: sqlite3.Connection, workspace: str, condition: str, arguments: tuple[Any, ...]) -> int:
        """Delete matching rows inside a transaction of `database.writing`; return how many."""
        revision = next_revision(db)
        gone = f"SELECT seq, workspace, {revision} FROM records WHERE workspace = ? AND ({condition})"
        db.execute(f"INSERT INTO removed {gone}", (workspace, *arguments))
        gone = f"DELETE FROM records WHERE workspace = ? AND ({condition})"
        return db.execute(gone, (workspace, *arguments)).rowcount


def _rank(found: tuple[int, float]) -> tuple[float, int]:
    seq, similarity = found
    # Rounded, so that equal texts rank by age on every machine.
    return -round(similarity, 5), seq

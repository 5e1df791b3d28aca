"""Store of experiences: one SQLite file, shared by threads, processes and experiments,
with workspaces apart from each other.

Guarantees: what a method returned from is on disk and survives a kill; what it raised from changed nothing. One process
writes at a time, others wait; readers never wait and see whole transactions. Counters are incremented, never
overwritten, so that none gets lost between processes. De-duplication and insertion are one transaction, so that no two
processes insert the same. The file remembers whose vectors it holds and refuses others (EncoderMismatch). Every failure
is a StoreError that names the file.
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
from experience_manager.database import BUSY_S, SELECT, Database, Stamp, from_row, next_revision, stamp_of, update
from experience_manager.errors import EncoderMismatch, StoreCorrupt, StoreError, UnknownExperience
from experience_manager.experience import Experience, covers, places_in
from experience_manager.index import DamagedVector, Snapshot, Vectors, Where
from experience_manager.merge import Added, IsSame, Merge
from experience_manager.utility import Belief, Pair, credited, is_harmful

ANYWHERE = Where()
# What makes two states of a store the same.
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
    """Search result: an experience and its cosine with the query."""

    experience: Experience
    similarity: float


@dataclass(frozen=True, slots=True)
class Count:
    """Increments of an experience's counters."""

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
    """Statistics of a workspace: experiences by category, those that are pinned and those that were used, and what came
    of their uses.

    `modified` is the time of the last change, 0 without one.
    """

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
    """Experiences in a file: inserts, searches, edits, counters, pruning. Safe for threads; open one a process."""

    def __init__(self, path: Path, *, create: bool = True, busy_s: float = BUSY_S) -> None:
        """Open the store at `path`, or make it; raises StoreError."""
        self.path = path
        self._database = Database(path, create=create, busy_s=busy_s)
        self._snapshots: dict[str, Snapshot] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def check(self) -> None:
        """Read the whole file; raises StoreCorrupt if it is damaged."""
        self._database.check()

    def copy_to(self, path: Path) -> None:
        """Write a copy of the store as it is to `path`, which must not exist."""
        self._database.copy_to(path)

    def restore(self, path: Path, aside: Path) -> None:
        """Make the store what it was when `path` was copied from it;
        the state until then goes to `aside`, in an older one's place.

        A store that is still the same, counters and all, is left alone, and no `aside` is written. Raises StoreError;
        then nothing has changed.
        """
        if self._database.holds(path, _STATE):
            return
        draft = aside.with_name(f".{aside.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        self.copy_to(draft)
        move(draft, aside)
        self._database.restore(path)
        # Revisions are given out again from here on: whoever has the file open must not take them for those that it
        # knows.
        with self._database.writing() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES ('generation', ?)", (secrets.token_hex(8),))
        self._snapshots.clear()

    @property
    def stamp(self) -> Stamp | None:
        """Whose vectors the store holds, None while it holds none."""
        with self._database.reading() as db:
            return stamp_of(db)

    def require(self, stamp: Stamp) -> None:
        """Raise EncoderMismatch if the store holds vectors of another kind."""
        with self._database.reading() as db:
            self._refuse_other(db, stamp)

    def workspaces(self) -> dict[str, int]:
        """Return the workspaces and how many experiences each holds."""
        with self._database.reading() as db:
            return dict(
                db.execute("SELECT workspace, count(*) FROM records GROUP BY workspace ORDER BY workspace").fetchall()
            )

    def get(self, workspace: str, identifier: str) -> Experience:
        """Return an experience by its id, or by a beginning of it that no other has; raises UnknownExperience."""
        with self._database.reading() as db:
            return self._get(db, workspace, identifier)

    def records(self, workspace: str, *, limit: int | None = None, offset: int = 0) -> list[Experience]:
        """Return experiences in the order in which they came."""
        query = f"SELECT {SELECT} FROM records WHERE workspace = ? ORDER BY seq LIMIT ? OFFSET ?"
        with self._database.reading() as db:
            return [from_row(row) for row in db.execute(query, (workspace, -1 if limit is None else limit, offset))]

    def each(self, workspace: str) -> Generator[Experience]:
        """Yield all experiences in the order in which they came, as of one state of the store,
        and keep none of them in memory."""
        with self._database.apart() as db:
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
        """Return the first experiences of an order, the greatest first and among equals the older, and how many there
        are to choose from.

        Args:
            workspace: where.
            order: what counts; without uses, or comparisons, an experience is the last.
            limit: how many at most; -1: all.
            category: only that one.
            scope: only what holds in these places.
        """
        condition, arguments = "workspace = ?", [workspace]
        for name, value in (("category = ?", category), ("covers(scope, ?)", scope)):
            if value is not None:
                condition, arguments = f"{condition} AND {name}", [*arguments, value]
        with self._database.apart() as db:
            db.create_function("covers", 2, covers, deterministic=True)
            (count,) = db.execute(f"SELECT count(*) FROM records WHERE {condition}", arguments).fetchone()
            # Which ones it is, before anything long is read of any.
            chosen = f"SELECT seq FROM records WHERE {condition} ORDER BY {_ORDERS[order]} DESC, seq LIMIT {int(limit)}"
            rows = db.execute(
                f"SELECT {SELECT} FROM records WHERE seq IN ({chosen}) ORDER BY {_ORDERS[order]} DESC, seq", arguments
            )
            return [from_row(row) for row in rows], int(count)

    def summary(self, workspace: str) -> Summary:
        """Return what a workspace holds, in numbers."""
        query = """SELECT category, count(*), sum(pinned), sum(uses > 0), sum(uses), sum(successes), sum(iif(uses, \
compared, 0)),
            sum(iif(uses, lift_sum, 0)), max(modified) FROM records WHERE workspace = ? GROUP BY category"""
        with self._database.apart() as db:
            rows = db.execute(query, (workspace,)).fetchall()
            scopes = db.execute("SELECT DISTINCT scope FROM records WHERE workspace = ?", (workspace,)).fetchall()
        kinds = {row[0]: row[1] for row in rows}
        pinned, used, uses, successes, compared, lift = (sum(row[i] for row in rows) for i in range(2, 8))
        places = {place for (scope,) in scopes for place in places_in(scope)}
        modified = max((row[8] for row in rows), default=0.0)
        return Summary(kinds, pinned, used, uses, successes, compared, lift, len(places), modified)

    def known(self, workspace: str, identifiers: Iterable[str]) -> set[str]:
        """Return which of some ids exist."""
        query = "SELECT id FROM records WHERE workspace = ? AND id = ?"
        with self._database.reading() as db:
            return {i for i in identifiers if db.execute(query, (workspace, i)).fetchone() is not None}

    def search(self, workspace: str, query: Vectors, k: int, stamp: Stamp, where: Where = ANYWHERE) -> list[Hit]:
        """Return the k experiences nearest to a unit vector (d), best first; raises EncoderMismatch."""
        with self._database.reading() as db:
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
        """Insert experiences, each joined to the one of its scope that says the same, if there is one.

        Args:
            workspace: where to.
            newcomers: what to insert; an id that exists there is replaced, text and counters and all, if nothing is
                joined, else what is there stands; of an id that comes twice the last counts.
            vectors: (n, d) unit vectors of what is embedded of them.
            stamp: whose they are.
            is_same: asked about each newcomer and its nearest neighbours, also those of the same call; None: nothing is
                joined.
            neighbours: how many of them.
            instead: whether they take the place of all that the workspace holds.

        Raises:
            EncoderMismatch, StoreBusy, StoreUnwritable, StoreCorrupt: nothing was inserted.
        """
        if len(newcomers) != len(vectors):
            raise ValueError(f"{len(newcomers)} experiences but {len(vectors)} vectors")
        with self._database.writing() as db:
            self._put_stamp(db, stamp)
            if instead:
                self._delete(db, workspace, "1", ())
            # Before the revision is raised: the snapshot must not believe that it has seen what is about to be written.
            snapshot = self._followed(db, workspace, stamp.dimension)
            if instead:
                # It has followed deletions that may yet be rolled back.
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
        """Change fields of an experience.

        Args:
            workspace: where it is.
            identifier: its id or a beginning of it.
            changes: new values by field; counters and provenance cannot be edited.
            vector: (d), needed when a text changes that is embedded; `stamp` says whose.

        Raises:
            UnknownExperience, EncoderMismatch, StoreError.
        """
        wrong = sorted(set(changes) - EDITABLE)
        if wrong:
            raise StoreError(f"{wrong[0]} cannot be edited; what can is {', '.join(sorted(EDITABLE))}")
        with self._database.writing() as db:
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
        """Delete experiences by id, or all of a workspace; returns how many there were."""
        with self._database.writing() as db:
            if identifiers is None:
                return self._delete(db, workspace, "1", ())
            return sum(self._delete(db, workspace, "id = ?", (identifier,)) for identifier in identifiers)

    def prune(self, workspace: str, *, min_uses: int, min_utility: float, min_lift: float | None) -> int:
        """Delete what was used often enough to be judged and was of too little use; pinned ones stay. Returns how many.

        Args:
            workspace: where.
            min_uses: guided rollouts (with unguided siblings, for the lift) before an experience is judged.
            min_utility: successes by use below which it goes.
            min_lift: mean difference to unguided siblings below which it goes; None: that does not matter.
        """
        useless = "(uses >= ? AND uses > 0 AND successes < ? * uses)"
        harmful = "(compared >= ? AND compared > 0 AND lift_sum < ? * compared)"
        judged = f"{useless} OR {harmful}" if min_lift is not None else useless
        arguments = (min_uses, min_utility) + ((min_uses, min_lift) if min_lift is not None else ())
        with self._database.writing() as db:
            return self._delete(db, workspace, f"pinned = 0 AND ({judged})", arguments)

    def count(self, workspace: str, counts: Mapping[str, Count]) -> None:
        """Add to counters, all in one transaction; ids that are gone are passed over."""
        rows = [(c.uses, c.successes, c.compared, c.lift, workspace, identifier) for identifier, c in counts.items()]
        if not rows:
            return
        update = (
            "UPDATE records SET uses = max(0, uses + ?), successes = max(0, successes + ?), compared = max(0, "
            "compared + ?), "
            "lift_sum = lift_sum + ? WHERE workspace = ? AND id = ?"
        )
        with self._database.writing() as db:
            db.executemany(update, rows)

    def credit(self, workspace: str, source: str, step: int, pairs: Sequence[Pair], prior_sd: float) -> bool:
        """Credit the pairs of a step to their experiences, all in one transaction; ids that are gone are passed over.

        Args:
            workspace: where.
            source: the run whose step it is.
            step: its number; one that is not above the last that was credited changes nothing.
            pairs: the step's, in their order.
            prior_sd: see `utility`.

        Returns whether the step was credited.
        """
        with self._database.writing() as db:
            known = "SELECT step FROM credited WHERE workspace = ? AND source = ?"
            last = db.execute(known, (workspace, source)).fetchone()
            if last is not None and step <= last[0]:
                return False
            db.execute("INSERT OR REPLACE INTO credited VALUES (?, ?, ?)", (workspace, source, step))
            beliefs = _beliefs(db, workspace, {i for pair in pairs for i in pair.experience_ids})
            for pair in pairs:
                ids = [identifier for identifier in pair.experience_ids if identifier in beliefs]
                beliefs |= zip(ids, credited([beliefs[i] for i in ids], pair, prior_sd), strict=True)
            update = (
                "UPDATE records SET paired = ?, paired_utility = ?, paired_precision = ? WHERE workspace = ? AND id = ?"
            )
            db.executemany(update, [(b.groups, b.mean, b.precision, workspace, i) for i, b in beliefs.items()])
        return True

    def start_over(self, source: str) -> None:
        """Have a run's steps credited from the first one on again; what they were credited with before stays.

        Of a run that never came further than its first step nothing is forgotten: it may have been killed in it, and
        repeats it.
        """
        with self._database.writing() as db:
            db.execute("DELETE FROM credited WHERE source = ? AND step > 1", (source,))

    def beliefs(self, workspace: str) -> list[Belief]:
        """Return what is believed of the utilities of a workspace's experiences."""
        with self._database.reading() as db:
            return list(_beliefs(db, workspace, None).values())

    def prune_harmful(self, workspace: str, *, prior_sd: float, certainty: float) -> int:
        """Delete what is harmful by its paired utility (see `utility.is_harmful`);
        pinned ones stay. Returns how many."""
        with self._database.writing() as db:
            beliefs = _beliefs(db, workspace, None, "pinned = 0")
            gone = [i for i, belief in beliefs.items() if is_harmful(belief, prior_sd, certainty)]
            return sum(self._delete(db, workspace, "id = ?", (identifier,)) for identifier in gone)

    def _followed(self, db: sqlite3.Connection, workspace: str, dimension: int) -> Snapshot:
        """Return the snapshot of a workspace as the transaction sees it."""
        meta = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('revision', 'generation')").fetchall())
        revision, generation = int(meta["revision"]), meta.get("generation", "")
        snapshot = self._snapshots.pop(workspace, None)
        if snapshot is not None and not snapshot.can_follow(dimension, generation, revision):
            snapshot = None
        if snapshot is None:
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

    def _delete(self, db: sqlite3.Connection, workspace: str, condition: str, arguments: tuple[Any, ...]) -> int:
        revision = next_revision(db)
        gone = f"SELECT seq, workspace, {revision} FROM records WHERE workspace = ? AND ({condition})"
        db.execute(f"INSERT INTO removed {gone}", (workspace, *arguments))
        gone = f"DELETE FROM records WHERE workspace = ? AND ({condition})"
        return db.execute(gone, (workspace, *arguments)).rowcount


def _beliefs(
    db: sqlite3.Connection, workspace: str, identifiers: Iterable[str] | None, condition: str = "1"
) -> dict[str, Belief]:
    """Return what is believed of the experiences of some ids, those of all without ids."""
    query = f"SELECT id, paired, paired_utility, paired_precision FROM records WHERE workspace = ? AND {condition}"
    if identifiers is None:
        rows = db.execute(query, (workspace,)).fetchall()
    else:
        rows = [row for i in sorted(identifiers) for row in db.execute(f"{query} AND id = ?", (workspace, i))]
    return {row[0]: Belief(*row[1:]) for row in rows}


def _rank(found: tuple[int, float]) -> tuple[float, int]:
    """Return a key that sorts (seq, similarity) best first:
    among equals the older one, whatever the index looked at first."""
    seq, similarity = found
    return -round(similarity, 5), seq

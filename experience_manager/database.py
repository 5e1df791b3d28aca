"""SQLite file of the pool: schema, migrations, transactions, rows, and the mapping of SQLite's errors to StoreErrors.

A committed transaction survives a kill and a power failure (WAL, synchronous FULL); others leave nothing behind. One
process writes at a time and others wait up to `busy_s`; readers never wait. A foreign or damaged file is never written
to. WAL needs a local file system: on a network mount, SQLite's own errors come through as StoreUnwritable.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from agentevolver.utils.sqlite import read_only
from agentevolver.utils.vectors import Vectors
from experience_manager.errors import StoreBusy, StoreCorrupt, StoreError, StoreUnwritable
from experience_manager.experience import Category, Experience, Variant

APPLICATION_ID = 0x45585052
VERSION = 2
BUSY_S = 30.0

# The last step of each run that was credited to experiences. A step repeated after a resume is not credited again.
_CREDITED = """CREATE TABLE credited (workspace TEXT NOT NULL, source TEXT NOT NULL, step INTEGER NOT NULL,
        PRIMARY KEY (workspace, source)) WITHOUT ROWID"""
_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "INSERT INTO meta VALUES ('revision', '0')",
    # The long columns come last: listing and counting do not read them.
    """CREATE TABLE records (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, workspace TEXT NOT NULL, revision INTEGER NOT NULL,
        category TEXT NOT NULL, validation_score REAL NOT NULL, confidence REAL NOT NULL, uses INTEGER NOT NULL, \
successes INTEGER NOT NULL,
        compared INTEGER NOT NULL, lift_sum REAL NOT NULL, paired INTEGER NOT NULL DEFAULT 0,
        paired_utility REAL NOT NULL DEFAULT 0, paired_precision REAL NOT NULL DEFAULT 0,
        support INTEGER NOT NULL, pinned INTEGER NOT NULL, created \
REAL NOT NULL,
        modified REAL NOT NULL, step INTEGER, author TEXT NOT NULL, scope TEXT NOT NULL, when_to_use TEXT NOT NULL, \
content TEXT NOT NULL,
        task_query TEXT NOT NULL, task_ids TEXT NOT NULL, more TEXT NOT NULL, vector BLOB NOT NULL,
        UNIQUE (workspace, id))""",
    "CREATE INDEX records_by_revision ON records (workspace, revision)",
    "CREATE TABLE removed (seq INTEGER PRIMARY KEY, workspace TEXT NOT NULL, revision INTEGER NOT NULL)",
    "CREATE INDEX removed_by_revision ON removed (workspace, revision)",
    _CREDITED,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)


# Statements that migrate a file to the next version. Defaults of new columns mean "nothing known".
_MIGRATIONS = {
    1: (
        "ALTER TABLE records ADD COLUMN paired INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE records ADD COLUMN paired_utility REAL NOT NULL DEFAULT 0",
        "ALTER TABLE records ADD COLUMN paired_precision REAL NOT NULL DEFAULT 0",
        _CREDITED,
        "PRAGMA user_version = 2",
    ),
}


@dataclass(frozen=True, slots=True)
class Stamp:
    """Identifies the encoder of the stored vectors."""

    encoder: str
    dimension: int
    embedded_text: str


class Database:
    """One connection, shared by the threads of a process under a lock. Methods raise StoreError."""

    def __init__(self, path: Path, *, create: bool = True, busy_s: float = BUSY_S) -> None:
        self.path = path
        self._busy_s = busy_s
        self._lock = threading.RLock()
        if not create and not (path.is_file() and path.stat().st_size):
            raise StoreError(f"{path}: there is no such store")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnwritable(f"{path.parent} cannot be made: {error.strerror}") from error
        with self._translated():
            self._db = self._connected(path)
        try:
            with self._translated():
                self._prepare()
        except StoreError:
            self._db.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a read transaction: one consistent state of the store."""
        with self._lock, self._translated():
            yield from self._transaction("BEGIN")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._translated():
            yield from self._transaction("BEGIN IMMEDIATE")

    @contextmanager
    def apart(self) -> Iterator[sqlite3.Connection]:
        # A connection of its own: a long read must not hold the lock.
        with (
            self._translated(),
            closing(self._connected(read_only(self.path), uri=True)) as db,
        ):
            db.execute("BEGIN")
            yield db

    def copy_to(self, path: Path) -> None:
        with self._lock, self._translated(), closing(sqlite3.connect(path)) as copy:
            self._db.backup(copy)

    def restore(self, path: Path) -> None:
        with (
            self._lock,
            self._translated(),
            closing(sqlite3.connect(read_only(path, immutable=True), uri=True)) as copy,
        ):
            copy.backup(self._db)
            self._migrate()

    def holds(self, path: Path, queries: Iterable[str]) -> bool:
        """Return whether an idle copy has the same schema version, and the same rows for each query."""
        with closing(_rows_of_copy(path, "PRAGMA user_version")) as version:
            (number,) = next(version)
        if not number:
            raise StoreCorrupt(f"{path}: not a store, or an incomplete one")
        if number != VERSION:
            return False
        with self.reading() as db:
            for query in queries:
                with closing(_rows_of_copy(path, query)) as copied:
                    if any(mine != theirs for mine, theirs in zip_longest(db.execute(query), copied)):
                        return False
        return True

    def check(self) -> None:
        with self._lock, self._translated():
            found = self._db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise self._corrupt(found)

    def _connected(self, path: Path | str, *, uri: bool = False) -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=self._busy_s, isolation_level=None, check_same_thread=False, uri=uri)

    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        self._db.execute(begin)
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _prepare(self) -> None:
        empty = not self.path.exists() or self.path.stat().st_size == 0
        if not empty:
            self._refuse_strangers()
        self._enter_wal()
        self._db.execute("PRAGMA synchronous = FULL")
        if self._pragma("application_id") == 0:
            self._make_tables()
        self._refuse_strangers()
        self._migrate()

    def _migrate(self) -> None:
        if self._pragma("user_version") == VERSION:
            return
        for _ in self._transaction("BEGIN IMMEDIATE"):
            # Another process may have migrated the file meanwhile.
            for version in range(self._pragma("user_version"), VERSION):
                for statement in _MIGRATIONS[version]:
                    self._db.execute(statement)

    def _make_tables(self) -> None:
        for _ in self._transaction("BEGIN IMMEDIATE"):
            # Another process may have made them meanwhile.
            if self._pragma("application_id") == 0:
                for statement in _SCHEMA:
                    self._db.execute(statement)

    def _refuse_strangers(self) -> None:
        # In one transaction: another process may be making the tables.
        for db in self._transaction("BEGIN"):
            application, version = self._pragma("application_id"), self._pragma("user_version")
            tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application == 0 and tables == 0:
            return
        if application != APPLICATION_ID:
            raise StoreError(f"{self.path} is an SQLite file of another program; give another path")
        if version > VERSION:
            raise StoreError(
                f"{self.path} was written by a later version ({version}, this one knows {VERSION}); update, or export "
                "it there and import it here (python -m experience_manager export, import)"
            )

    def _enter_wal(self) -> None:
        # Entering WAL mode does not wait for a lock by itself; several processes may make the file at once.
        deadline = time.monotonic() + self._busy_s
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if _primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def _corrupt(self, detail: str) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self.path} is damaged or no store ({detail}). It was not touched: move it away, and import the last "
            "export, or what "
            f"`sqlite3 {self.path} .recover` still finds"
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise StoreError(f"{self.path}: {error}") from error
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def _translate(self, error: sqlite3.Error) -> StoreError:
        code = _primary(error)
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return self._corrupt(str(error))
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreBusy(
                f"{self.path} stayed locked by another process for {self._busy_s:g} s; nothing was changed"
            )
        if code in (
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_PERM,
        ):
            return StoreUnwritable(
                f"{self.path} cannot be written ({error}); nothing was changed: check free space and permissions"
            )
        return StoreError(f"{self.path}: {error}")


def _primary(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


# fmt: off
_PLAIN = (
    "id", "workspace", "validation_score", "confidence", "uses", "successes", "compared", "lift_sum", "paired",
    "paired_utility", "paired_precision", "support",
    "created", "modified", "step", "author", "scope", "when_to_use", "content", "task_query",
)
# fmt: on
COLUMNS = (*_PLAIN, "category", "pinned", "task_ids", "more")
SELECT = ", ".join(COLUMNS)
_COUNTERS = ("uses", "successes", "compared", "lift_sum", "paired", "paired_utility", "paired_precision")


def to_row(experience: Experience) -> tuple[Any, ...]:
    more = {
        "trajectory_ids": experience.trajectory_ids,
        "tags": experience.tags,
        "variants": [asdict(variant) for variant in experience.variants],
        "metadata": experience.metadata,
    }
    return (
        *(getattr(experience, name) for name in _PLAIN),
        experience.category.value,
        int(experience.pinned),
        orjson.dumps(experience.task_ids).decode(),
        orjson.dumps(more).decode(),
    )


def from_row(row: tuple[Any, ...]) -> Experience:
    values = dict(zip(COLUMNS, row, strict=True))
    more = orjson.loads(values.pop("more"))
    return Experience(
        **{
            **values,
            "category": Category(values["category"]),
            "pinned": bool(values["pinned"]),
            "task_ids": tuple(orjson.loads(values["task_ids"])),
            "trajectory_ids": tuple(more["trajectory_ids"]),
            "tags": tuple(more["tags"]),
            "variants": tuple(Variant(**variant) for variant in more["variants"]),
            "metadata": more["metadata"],
        }
    )


def update(
    db: sqlite3.Connection, experience: Experience, revision: int, vector: Vectors | None, *, reset: bool = False
) -> None:
    """Write all columns but the counters; `reset` sets those to 0."""
    # Other processes increment the counters meanwhile.
    values = {name: value for name, value in zip(COLUMNS, to_row(experience), strict=True) if name not in _COUNTERS}
    values["revision"] = revision
    values |= dict.fromkeys(_COUNTERS, 0) if reset else {}
    if vector is not None:
        values["vector"] = blob(vector)
    columns = ", ".join(f"{name} = ?" for name in values)
    key = (experience.workspace, experience.id)
    db.execute(f"UPDATE records SET {columns} WHERE workspace = ? AND id = ?", (*values.values(), *key))


def blob(vector: Vectors | None) -> bytes:
    return b"" if vector is None else np.ascontiguousarray(vector, dtype=np.float32).tobytes()


def _rows_of_copy(path: Path, query: str) -> Generator[tuple[Any, ...]]:
    try:
        with closing(sqlite3.connect(read_only(path, immutable=True), uri=True)) as copy:
            yield from copy.execute(query)
    except sqlite3.Error as error:
        raise StoreCorrupt(f"{path}: {error}") from error


def stamp_of(db: sqlite3.Connection) -> Stamp | None:
    values = dict(db.execute("SELECT key, value FROM meta").fetchall())
    with suppress(KeyError):
        return Stamp(values["encoder"], int(values["dimension"]), values["embedded_text"])
    return None


def revision_of(path: Path) -> int | None:
    """Return the revision of a store's file, or None if the file does not exist."""
    if not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_S)) as db:
            db.execute("PRAGMA query_only = 1")
            row = db.execute("SELECT value FROM meta WHERE key = 'revision'").fetchone()
    except sqlite3.Error as error:
        raise StoreCorrupt(f"{path}: {error}") from error
    return int(row[0]) if row is not None else None


def next_revision(db: sqlite3.Connection) -> int:
    db.execute("UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = 'revision'")
    return int(db.execute("SELECT value FROM meta WHERE key = 'revision'").fetchone()[0])

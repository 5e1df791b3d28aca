"""SQLite stores of the roles' calls: the ledger of spending, with its budget, and the cache of replies.

The ledger survives restarts and is shared by the processes of a run. The cache finds replies by (endpoint, model,
messages, sampling) and never fails a call.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import threading
import time
from contextlib import closing, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from agentevolver.llm.errors import BudgetExceeded, LLMError, LLMReply, LLMToolCall
from agentevolver.llm.settings import BudgetSettings
from agentevolver.utils.sqlite import open_shared, read_only

logger = logging.getLogger(__name__)

BUSY_S = 5.0

_USAGE = """CREATE TABLE IF NOT EXISTS usage (
    role TEXT PRIMARY KEY, calls INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    cost REAL NOT NULL)"""
_READ_USAGE = "SELECT role, calls, prompt_tokens, completion_tokens, cost FROM usage"
_ADD_USAGE = """INSERT INTO usage VALUES (?, ?, ?, ?, ?) ON CONFLICT (role) DO UPDATE SET
    calls = calls + excluded.calls, prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens, cost = cost + excluded.cost"""
_REPLIES = """CREATE TABLE IF NOT EXISTS replies (
    key TEXT PRIMARY KEY, text TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    finish_reason TEXT NOT NULL, created REAL NOT NULL, tool_calls TEXT NOT NULL DEFAULT '[]', thinking TEXT NOT NULL \
DEFAULT '')"""
# Columns missing from files of earlier versions.
_REPLIES_ADDED = ("tool_calls TEXT NOT NULL DEFAULT '[]'", "thinking TEXT NOT NULL DEFAULT ''")
_REPLY_COLUMNS = "text, prompt_tokens, completion_tokens, finish_reason, tool_calls, thinking"


class LedgerError(LLMError):
    """The ledger's file cannot be used."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Calls, tokens, and cost in the currency of the prices."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cost + other.cost,
        )


def read_usage(path: Path) -> dict[str, Usage]:
    """Return the usage of each role in a ledger's file, the dearest first, without writing to it; {} if there is no
    file. Raises sqlite3.Error."""
    if not path.is_file():
        return {}
    with closing(sqlite3.connect(read_only(path), uri=True, timeout=BUSY_S)) as file:
        return {row[0]: Usage(*row[1:]) for row in file.execute(f"{_READ_USAGE} ORDER BY cost DESC, calls DESC")}


class Ledger:
    """Counts usage by role and guards the budget. Thread-safe; without a path it lives in memory."""

    def __init__(self, path: Path | None = None, budget: BudgetSettings | None = None) -> None:
        """Open or create the file; raises LedgerError if that fails."""
        self.budget = budget or BudgetSettings()
        self._lock = threading.Lock()
        self._in_flight = Usage()
        self._unwritten: dict[str, Usage] = {}
        self._known: dict[str, Usage] = {}
        self._reported = False
        self._db: sqlite3.Connection | None = None
        if path is not None:
            try:
                self._db = open_shared(path, _USAGE)
                self._known = self._stored()
            except (sqlite3.Error, OSError) as error:
                raise LedgerError(
                    f"{path}: the ledger of language model costs cannot be opened ({error}); repair or remove it"
                ) from error

    def by_role(self) -> dict[str, Usage]:
        """Return the usage of each role so far, including that of the resumed runs."""
        with self._lock:
            return self._totals()

    def spent(self) -> Usage:
        return sum(self.by_role().values(), Usage())

    def begin(self, estimate: Usage) -> None:
        """Reserve the estimate of a call that is about to be sent; raises BudgetExceeded, and reserves nothing, if the
        budget does not allow it."""
        with self._lock:
            # Settled usage of all processes, and calls in flight of this one: only calls in flight can exceed the
            # budget.
            now = sum(self._totals().values(), Usage())
            ahead = now + self._in_flight + estimate
            limits = self.budget
            if limits.max_tokens is not None and ahead.tokens > limits.max_tokens:
                raise BudgetExceeded(
                    f"the budget of {limits.max_tokens} tokens is spent: {now.tokens} were used, and the next call "
                    f"needs about {estimate.tokens}; raise llm.budget.max_tokens to go on"
                )
            if limits.max_cost is not None and ahead.cost > limits.max_cost:
                raise BudgetExceeded(
                    f"the budget of {limits.max_cost:g} is spent: {now.cost:.4f} were used, and the next call costs "
                    f"about {estimate.cost:.4f}; raise llm.budget.max_cost to go on"
                )
            self._in_flight += estimate

    def settle(self, role: str, estimate: Usage, used: Usage) -> None:
        """Replace the estimate of a call by its actual usage (nothing if it failed)."""
        with self._lock:
            minus = Usage(-estimate.calls, -estimate.prompt_tokens, -estimate.completion_tokens, -estimate.cost)
            self._in_flight += minus
            if used == Usage():
                return
            self._unwritten[role] = self._unwritten.get(role, Usage()) + used
            self._write()

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._write()
                self._db.close()
                self._db = None

    def _totals(self) -> dict[str, Usage]:
        if self._db is not None:
            try:
                self._known = self._stored()
            except sqlite3.Error as error:
                self._report(error)
        return {
            role: self._known.get(role, Usage()) + self._unwritten.get(role, Usage())
            for role in {*self._known, *self._unwritten}
        }

    def _stored(self) -> dict[str, Usage]:
        assert self._db is not None
        return {row[0]: Usage(*row[1:]) for row in self._db.execute(_READ_USAGE)}

    def _write(self) -> None:
        if self._db is None:
            return
        # If the file cannot be written (a full disk), usage stays in `_unwritten`, and the next success writes it.
        rows = [(role, u.calls, u.prompt_tokens, u.completion_tokens, u.cost) for role, u in self._unwritten.items()]
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(_ADD_USAGE, rows)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._report(error)
            return
        for role, used in self._unwritten.items():
            self._known[role] = self._known.get(role, Usage()) + used
        self._unwritten.clear()
        self._reported = False

    def _report(self, error: sqlite3.Error) -> None:
        if not self._reported:
            logger.warning(
                "the ledger of language model costs cannot be written now (%s); they are counted in memory", error
            )
            self._reported = True


class CacheError(LLMError):
    pass


@dataclass(frozen=True, slots=True)
class Stored:
    """A reply as the cache stores it; `tool_calls` is a JSON list of (name, arguments)."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    tool_calls: str = "[]"
    thinking: str = ""

    @classmethod
    def of(cls, reply: LLMReply) -> Stored:
        calls = json.dumps([[call.name, call.arguments] for call in reply.tool_calls])
        return cls(reply.text, reply.prompt_tokens, reply.completion_tokens, reply.finish_reason, calls, reply.thinking)

    def reply(self) -> LLMReply:
        calls = tuple(LLMToolCall(name, arguments) for name, arguments in json.loads(self.tool_calls))
        return LLMReply(
            self.text, self.prompt_tokens, self.completion_tokens, 0.0, True, self.finish_reason, calls, self.thinking
        )


def cache_key(base_url: str, model: str, messages: list[dict[str, Any]], sampling: dict[str, Any]) -> str:
    """Return the hash of everything that determines a reply except chance."""
    data = json.dumps([base_url, model, messages, sampling], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(data.encode("utf-8", "surrogatepass")).hexdigest()


class ReplyCache:
    """Cache of replies in one file. Thread-safe; an error of reading or writing counts as a miss and is reported
    once."""

    def __init__(self, path: Path) -> None:
        """Open or create the file; raises CacheError if that fails."""
        self._lock = threading.Lock()
        self._reported = False
        try:
            self._db = self._open_or_replace(path)
        except (sqlite3.Error, OSError) as error:
            raise CacheError(f"{path}: the cache of replies cannot be opened: {error}") from error

    def _open_or_replace(self, path: Path) -> sqlite3.Connection:
        try:
            return self._open(path)
        except sqlite3.DatabaseError as error:
            # Set aside only a broken file, not one that is busy or read-only.
            if error.sqlite_errorcode not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise
            aside = path.with_name(f"{path.name}.unreadable-{int(time.time())}")
            logger.warning("%s is not a usable cache of replies; it is kept as %s and replaced", path, aside.name)
            path.rename(aside)
            return self._open(path)

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        connection = open_shared(path, _REPLIES)
        try:
            known = {row[1] for row in connection.execute("PRAGMA table_info(replies)")}
            for column in _REPLIES_ADDED:
                if column.split()[0] not in known:
                    with suppress(sqlite3.OperationalError):  # another process was first
                        connection.execute(f"ALTER TABLE replies ADD COLUMN {column}")
            connection.execute("SELECT count(*) FROM (SELECT * FROM replies LIMIT 1)").fetchone()
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def get(self, key: str) -> Stored | None:
        try:
            with self._lock:
                row = self._db.execute(f"SELECT {_REPLY_COLUMNS} FROM replies WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            self._report(error)
            return None
        return Stored(*row) if row else None

    def put(self, key: str, reply: Stored) -> None:
        statement = f"INSERT OR REPLACE INTO replies (key, created, {_REPLY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        self._execute(statement, (key, time.time(), *astuple(reply)))

    def forget(self, key: str) -> None:
        """Drop an unusable reply, so that the next run calls the model again."""
        self._execute("DELETE FROM replies WHERE key = ?", (key,))

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _execute(self, statement: str, values: tuple[Any, ...]) -> None:
        try:
            with self._lock:
                self._db.execute(statement, values)
        except sqlite3.Error as error:
            self._report(error)

    def _report(self, error: sqlite3.Error) -> None:
        if not self._reported:
            logger.warning("the cache of replies is not usable at the moment (%s); calls go on without it", error)
            self._reported = True

"""Replies kept on disk by (endpoint, model, messages, sampling), so that asking the same again costs nothing.

One SQLite file in WAL mode, for any number of threads and processes; a kill loses at most the reply being written. A
cache is never
worth a failure: a file that is no database is set aside and begun anew; errors while reading or writing mean "not
    cached" and are
reported once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentevolver.llm.errors import LLMError
from agentevolver.llm.ledger import open_sqlite
from agentevolver.llm.replies import Reply, ToolCall

logger = logging.getLogger(__name__)

_SCHEMA = """CREATE TABLE IF NOT EXISTS replies (
    key TEXT PRIMARY KEY, text TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    finish_reason TEXT NOT NULL, created REAL NOT NULL, tool_calls TEXT NOT NULL DEFAULT '[]', thinking TEXT NOT NULL \
DEFAULT '')"""
# Columns that files of earlier versions lack.
_ADDED = ("tool_calls TEXT NOT NULL DEFAULT '[]'", "thinking TEXT NOT NULL DEFAULT ''")
_COLUMNS = "text, prompt_tokens, completion_tokens, finish_reason, tool_calls, thinking"


class CacheError(LLMError):
    """The cache's file cannot be opened (no right to, or no folder)."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A reply as it is kept."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    tool_calls: str = "[]"
    thinking: str = ""

    @classmethod
    def of(cls, reply: Reply) -> Stored:
        """Return a reply as it is kept: its tool calls as JSON pairs of name and arguments."""
        calls = json.dumps([[call.name, call.arguments] for call in reply.tool_calls])
        return cls(reply.text, reply.prompt_tokens, reply.completion_tokens, reply.finish_reason, calls, reply.thinking)

    def reply(self) -> Reply:
        """Return the reply that was kept; raises ValueError if its tool calls cannot be read."""
        calls = tuple(ToolCall(name, arguments) for name, arguments in json.loads(self.tool_calls))
        return Reply(
            self.text, self.prompt_tokens, self.completion_tokens, 0.0, True, self.finish_reason, calls, self.thinking
        )


def cache_key(base_url: str, model: str, messages: list[dict[str, Any]], sampling: dict[str, Any]) -> str:
    """Return the hash of everything that decides a reply but chance."""
    data = json.dumps([base_url, model, messages, sampling], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(data.encode("utf-8", "surrogatepass")).hexdigest()


class ReplyCache:
    """The replies of one file. Safe for threads."""

    def __init__(self, path: Path) -> None:
        """Open or make the file; raises CacheError if that is not possible."""
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
            # Only what is broken is set aside: a file that is busy or may not be written is left where it is.
            if error.sqlite_errorcode not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise
            aside = path.with_name(f"{path.name}.unreadable-{int(time.time())}")
            logger.warning("%s is no usable cache of replies; it is kept as %s and begun anew", path, aside.name)
            path.rename(aside)
            return self._open(path)

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        connection = open_sqlite(path)
        try:
            connection.execute(_SCHEMA)
            known = {row[1] for row in connection.execute("PRAGMA table_info(replies)")}
            for column in _ADDED:
                if column.split()[0] not in known:
                    with suppress(sqlite3.OperationalError):  # another process was first
                        connection.execute(f"ALTER TABLE replies ADD COLUMN {column}")
            connection.execute("SELECT count(*) FROM (SELECT * FROM replies LIMIT 1)").fetchone()
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def get(self, key: str) -> Stored | None:
        """Return the reply of a key, None if there is none."""
        try:
            with self._lock:
                row = self._db.execute(f"SELECT {_COLUMNS} FROM replies WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            self._report(error)
            return None
        return Stored(*row) if row else None

    def put(self, key: str, reply: Stored) -> None:
        """Keep a reply; the newer one counts."""
        values = (
            reply.text,
            reply.prompt_tokens,
            reply.completion_tokens,
            reply.finish_reason,
            reply.tool_calls,
            reply.thinking,
        )
        statement = f"INSERT OR REPLACE INTO replies (key, created, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        self._execute(statement, (key, time.time(), *values))

    def forget(self, key: str) -> None:
        """Drop a reply that turned out to be useless, so that the next run asks again."""
        self._execute("DELETE FROM replies WHERE key = ?", (key,))

    def close(self) -> None:
        """Close the file."""
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

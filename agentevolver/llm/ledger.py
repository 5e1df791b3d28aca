"""What the roles' calls cost, kept over restarts, and the budget that stops a run before the call that it can no longer
afford.

One SQLite file may be shared by the processes of a run: each adds to the same rows in transactions, so that what was
counted survives a kill, and a resumed run goes on counting. The budget is checked before a call against what was
settled by all processes and what this process has in flight; it may be passed by what calls in flight cost beyond their
estimates, and by other processes' calls in flight. A ledger that cannot be opened raises LedgerError. One that cannot
be written later (a full disk) is reported once and goes on in memory, budget included; what is missing in the file is
written with the next success.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path

from agentevolver.llm.errors import BudgetExceeded, LLMError
from agentevolver.llm.settings import BudgetSettings

logger = logging.getLogger(__name__)

_SCHEMA = """CREATE TABLE IF NOT EXISTS usage (
    role TEXT PRIMARY KEY, calls INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    cost REAL NOT NULL)"""
_READ = "SELECT role, calls, prompt_tokens, completion_tokens, cost FROM usage"
_ADD = """INSERT INTO usage VALUES (?, ?, ?, ?, ?) ON CONFLICT (role) DO UPDATE SET calls = calls + excluded.calls,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens, completion_tokens = completion_tokens + \
excluded.completion_tokens,
    cost = cost + excluded.cost"""


class LedgerError(LLMError):
    """The ledger's file cannot be used."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What calls took: their number, tokens, and cost in the currency of the prices."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cost + other.cost,
        )


def open_sqlite(path: Path) -> sqlite3.Connection:
    """Open a database that several threads and processes write to at once; waits 10 s at most for another's write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class Ledger:
    """Counts usage by role and guards the budget. Safe for threads; without a path it lives in memory."""

    def __init__(self, path: Path | None = None, budget: BudgetSettings | None = None) -> None:
        """Open or make the file; raises LedgerError if that cannot be done."""
        self.budget = budget or BudgetSettings()
        self._lock = threading.Lock()
        self._in_flight = Usage()
        self._unwritten: dict[str, Usage] = {}
        self._known: dict[str, Usage] = {}
        self._reported = False
        self._db: sqlite3.Connection | None = None
        if path is not None:
            try:
                self._db = open_sqlite(path)
                self._db.execute(_SCHEMA)
                self._known = self._stored()
            except (sqlite3.Error, OSError) as error:
                raise LedgerError(
                    f"{path}: the ledger of what was spent cannot be opened ({error}); repair or remove it"
                ) from error

    def by_role(self) -> dict[str, Usage]:
        """Return what was spent so far by each role, in this run and by those it resumes."""
        with self._lock:
            return self._totals()

    def spent(self) -> Usage:
        """Return what was spent so far by all roles."""
        return sum(self.by_role().values(), Usage())

    def begin(self, estimate: Usage) -> None:
        """Take note of a call that is about to be sent; raises BudgetExceeded, having noted nothing, if it can no
        longer be afforded."""
        with self._lock:
            now = sum(self._totals().values(), Usage())
            ahead = now + self._in_flight + estimate
            limits = self.budget
            if limits.max_tokens is not None and ahead.tokens > limits.max_tokens:
                raise BudgetExceeded(
                    f"the budget of {limits.max_tokens} tokens is spent: {now.tokens} were used, and the next call "
                    "needs about "
                    f"{estimate.tokens}; raise llm.budget.max_tokens to go on"
                )
            if limits.max_cost is not None and ahead.cost > limits.max_cost:
                raise BudgetExceeded(
                    f"the budget of {limits.max_cost:g} is spent: {now.cost:.4f} were used, and the next call costs "
                    "about "
                    f"{estimate.cost:.4f}; raise llm.budget.max_cost to go on"
                )
            self._in_flight += estimate

    def settle(self, role: str, estimate: Usage, used: Usage) -> None:
        """Replace the estimate of a call by what it took (nothing, if it failed)."""
        with self._lock:
            minus = Usage(-estimate.calls, -estimate.prompt_tokens, -estimate.completion_tokens, -estimate.cost)
            self._in_flight += minus
            if used == Usage():
                return
            self._unwritten[role] = self._unwritten.get(role, Usage()) + used
            self._write()

    def close(self) -> None:
        """Write what is not written yet and close the file."""
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
        return {row[0]: Usage(*row[1:]) for row in self._db.execute(_READ)}

    def _write(self) -> None:
        if self._db is None:
            return
        rows = [(role, u.calls, u.prompt_tokens, u.completion_tokens, u.cost) for role, u in self._unwritten.items()]
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(_ADD, rows)
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
                "what the language models cost cannot be written at the moment (%s); it is counted in memory", error
            )
            self._reported = True

"""Rate limiter of one server's account, shared by all roles and by all processes of this user on this host.

A row of a SQLite file in the user's private runtime folder holds when the server may be asked again (the pause), the
limits per minute that are known, and when the next request is due. A call *reserves* its moment in one short
transaction and sleeps until then, so that nobody polls and nothing is held: a process that is killed leaves at most one
unused moment behind.

* Limits per minute, as set or as a refusal names them, are kept by the generic cell rate algorithm (ITU-T I.371) with a
  burst of 3 s.
* A refusal closes the server for all: for as long as it asks, else with full jitter over a range that doubles with each
  refusal in a row.
* Refusals that name nothing teach a rate: the requests per second that were not refused since they began to come
  without a break. It grows by 2 % with each answer, so that it finds a limit that was raised.

A file that cannot be used is reported once; the process then keeps to itself.
"""

from __future__ import annotations

import datetime
import email.utils
import hashlib
import logging
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from agentevolver.utils.files import runtime_folder
from agentevolver.utils.retry import full_jitter
from agentevolver.utils.sqlite import open_shared

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.IGNORECASE)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_AGAIN = re.compile(
    r"(?:try again|retry|retry after|please "
    r"wait)\s+(?:in|after|for)?\s*((?:\d+(?:\.\d+)?\s*(?:ms|s|m|h)(?:ec\w*|in\w*)?\s*)+)",
    re.I,
)
_PER_MINUTE = re.compile(r"(requests|tokens) per min(?:ute)?(?: \(\w+\))?:? ?(?:limit:?)? ?(\d[\d,]*)", re.IGNORECASE)
# A reset that reads as a number this large is a moment, in seconds since 1970.
_EPOCH = 1e9


@dataclass(frozen=True, slots=True)
class Allowance:
    """One rate limit as headers tell it: how much there is in all and is left, and in how many seconds it is whole
    again; None: not told."""

    limit: float | None = None
    remaining: float | None = None
    reset_s: float | None = None


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Rate limits on requests and on tokens that one reply told."""

    requests: Allowance = Allowance()
    tokens: Allowance = Allowance()

    @property
    def told(self) -> bool:
        """Whether it told anything."""
        return self != RateLimits()


def asked_wait(headers: Mapping[str, str], text: str = "") -> float | None:
    """Return the seconds that a server asks to wait: `retry-after-ms`, `Retry-After` (seconds or a date), or "try again
    in 1.2s" in the text of its error; None if it does not ask."""
    milliseconds, said = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        if milliseconds is not None:
            return max(0.0, float(milliseconds) / 1000.0)
        if said is not None:
            return max(0.0, float(said))
    except ValueError:
        when = email.utils.parsedate_tz(said or "")
        return max(0.0, email.utils.mktime_tz(when) - time.time()) if when else None
    found = _AGAIN.search(text)
    return _span(found[1]) if found else None


def read_headers(headers: Mapping[str, str]) -> RateLimits:
    """Return what the headers of a reply tell; a header that cannot be read counts as missing."""
    return RateLimits(_allowance(headers, "requests"), _allowance(headers, "tokens"))


def per_minute(text: str) -> tuple[float | None, float | None]:
    """Return the requests and the tokens per minute that the text
    of a 429 names ("tokens per min (TPM): Limit 30000, Used ...")."""
    found = {kind.lower(): float(number.replace(",", "")) for kind, number in _PER_MINUTE.findall(text)}
    return found.get("requests"), found.get("tokens")


def _allowance(headers: Mapping[str, str], kind: str) -> Allowance:
    def first(*names: str) -> str:
        return next((headers[name] for name in names if name in headers), "")

    # The IETF's draft knows one limit alone, which is on requests.
    plain = kind == "requests"
    limit = first(
        f"x-ratelimit-limit-{kind}",
        f"anthropic-ratelimit-{kind}-limit",
        *(("x-ratelimit-limit", "ratelimit-limit") if plain else ()),
    )
    left = first(
        f"x-ratelimit-remaining-{kind}",
        f"anthropic-ratelimit-{kind}-remaining",
        *(("x-ratelimit-remaining", "ratelimit-remaining") if plain else ()),
    )
    reset = first(
        f"x-ratelimit-reset-{kind}",
        f"anthropic-ratelimit-{kind}-reset",
        *(("x-ratelimit-reset", "ratelimit-reset") if plain else ()),
    )
    return Allowance(_number(limit), _number(left), _reset(reset))


def _number(text: str) -> float | None:
    try:
        found = float(text.split(",")[0].split(";")[0])
    except ValueError:
        return None
    return found if found >= 0 else None


def _reset(text: str) -> float | None:
    """Return in how many seconds: of "6m0s", "120ms", "12", a time since 1970, or an RFC 3339 date."""
    number = _number(text)
    if number is not None:
        # Some send milliseconds since 1970.
        moment = number / 1000.0 if number > 1000 * _EPOCH else number
        return max(0.0, moment - time.time()) if moment > _EPOCH else moment
    if "T" in text:
        try:
            return max(0.0, datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() - time.time())
        except ValueError:
            return None
    return _span(text)


def _span(text: str) -> float | None:
    parts = _SPAN.findall(text)
    return sum(float(number) * _UNITS[unit.lower()] for number, unit in parts) if parts else None


logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
FILE = "llm_pace.sqlite"
# Kept a little below the limit: the server's clock is not ours.
SHARE = 0.95
BURST_S = 3.0
GROWTH = 1.02
# Without a request for so long, what was measured says nothing any more.
IDLE_S = 10.0
FORGOTTEN_S = 600.0
# Requests are counted over this long at most; a rate is not taken from less than the other.
LONGEST_S, SHORTEST_S = 120.0, 1.0
# A pause that is longer comes from a clock that was set back.
LONGEST_PAUSE_S = 86400.0


@dataclass(slots=True)
class _Row:
    """State of one account; times are seconds since 1970, zero if there was none."""

    closed_since: float = 0.0
    closed_until: float = 0.0
    strikes: int = 0
    refusals: int = 0
    requests_per_minute: float = 0.0
    tokens_per_minute: float = 0.0
    rate: float = 0.0
    next_request: float = 0.0
    next_token: float = 0.0
    asked_at: float = 0.0
    measured_since: float = 0.0
    admitted: float = 0.0


_NAMES = [field.name for field in fields(_Row)]
# Versions with other columns have a table of their own in the same file.
TABLE = f"paces_{hashlib.sha256(' '.join(_NAMES).encode()).hexdigest()[:8]}"
_SCHEMA = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (account TEXT PRIMARY KEY, "
    f"{', '.join(f'{name} REAL NOT NULL' for name in _NAMES)})"
)
_READ = f"SELECT {', '.join(_NAMES)} FROM {TABLE} WHERE account = ?"
_WRITE = f"INSERT OR REPLACE INTO {TABLE} VALUES (?{', ?' * len(_NAMES)})"


def account_of(base_url: str, api_key: str) -> str:
    """Return what a server and a key are called in the file: a hash, which shows neither."""
    return hashlib.sha256(f"{base_url}\0{api_key}".encode()).hexdigest()[:24]


class Pace:
    """Rate limiter of one account. Its methods wait for nothing but short transactions; `clock`: time since 1970."""

    def __init__(
        self,
        account: str,
        path: Path | None,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open or make the file; None, or one that cannot be used: this process alone keeps to the pace. The limits are
        those that are set; they count beside what is learnt."""
        self._account = account
        self._set = (requests_per_minute, tokens_per_minute)
        self._clock = clock
        self._db = _open(path)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def reserve(self, tokens: int) -> float:
        """Reserve the next moment for a request of so many tokens;
        returns the seconds until then, pauses left aside."""
        with self._row() as row:
            now = self._clock()
            if now - row.asked_at > FORGOTTEN_S:
                row.strikes, row.rate = 0, 0.0
            if now - max(row.asked_at, row.closed_until) > IDLE_S:
                row.measured_since, row.admitted = now, 0.0
            elif now - row.measured_since > LONGEST_S:
                row.admitted *= LONGEST_S / 2 / (now - row.measured_since)
                row.measured_since = now - LONGEST_S / 2
            row.asked_at = now
            row.admitted += 1
            per_request = max(_interval(self._set[0], row.requests_per_minute), 1.0 / row.rate if row.rate else 0.0)
            per_token = _interval(self._set[1], row.tokens_per_minute)
            # A rate that was measured allows no bursts: a burst was what measured it.
            burst = 0.0 if row.rate and per_request == 1.0 / row.rate else BURST_S
            begin = now
            if per_request:
                begin = max(begin, row.next_request - burst)
            if per_token:
                begin = max(begin, row.next_token - BURST_S)
            row.next_request = max(row.next_request, begin) + per_request
            row.next_token = max(row.next_token, begin) + tokens * per_token
            return begin - now

    def closed_for(self) -> float:
        """Return how many seconds the pause still takes, 0 if there is none."""
        left = self._read().closed_until - self._clock()
        return left if 0.0 < left <= LONGEST_PAUSE_S else 0.0

    @property
    def refusals(self) -> int:
        """How many volleys of refusals there were, of all processes."""
        return int(self._read().refusals)

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """The requests and the tokens per minute that refusals have named;
        a rate that was measured counts as the former."""
        row = self._read()
        return row.requests_per_minute or (60.0 * row.rate if row.rate else None), row.tokens_per_minute or None

    def refused(
        self,
        sent_at: float,
        asked_s: float | None,
        max_wait_s: float,
        named: tuple[float | None, float | None] = (None, None),
    ) -> float:
        """Note that a request was refused for its rate; returns the seconds that the server is left alone now.

        Args:
            sent_at: when it was sent, by this clock; one from before the latest pause makes no longer pause.
            asked_s: what the server asked to wait, None if it did not.
            max_wait_s: the longest pause where it did not ask.
            named: requests and tokens per minute that the refusal named.
        """
        with self._row() as row:
            now = self._clock()
            row.requests_per_minute = named[0] or row.requests_per_minute
            row.tokens_per_minute = named[1] or row.tokens_per_minute
            row.admitted = max(0.0, row.admitted - 1)
            is_first = sent_at >= row.closed_since
            if is_first:
                row.strikes, row.refusals, row.closed_since = row.strikes + 1, row.refusals + 1, now
                measured = now - row.measured_since
                if asked_s is None and not row.requests_per_minute and row.admitted >= 2 and measured >= SHORTEST_S:
                    row.rate = row.admitted / measured
            if is_first or asked_s is not None:
                wait = full_jitter(row.strikes, first_wait_s=FIRST_PAUSE_S, max_wait_s=max_wait_s, asked_s=asked_s)
                row.closed_until = max(row.closed_until, now + wait)
            return max(0.0, row.closed_until - now)

    def answered(
        self, sent_at: float, more_tokens: int = 0, told: RateLimits | None = None, max_wait_s: float = 0.0
    ) -> None:
        """Note an answer.

        Args:
            sent_at: when its request was sent, by this clock.
            more_tokens: what it took beyond the tokens it had reserved (negative: less).
            told: what its headers tell; where nothing is left the server is left alone until there is, `max_wait_s` at
                most.
        """
        with self._row() as row:
            now = self._clock()
            if sent_at >= row.closed_since:
                row.strikes = 0
            row.rate *= GROWTH
            row.next_token += more_tokens * _interval(self._set[1], row.tokens_per_minute)
            if told is not None:
                pause = max(_until_left(told.requests), _until_left(told.tokens))
                row.closed_until = max(row.closed_until, now + min(pause, max_wait_s))

    def _read(self) -> _Row:
        try:
            values = self._db.execute(_READ, (self._account,)).fetchone()
        except sqlite3.Error as error:
            self._alone(error)
            return self._read()
        return _Row(*values) if values else _Row()

    @contextmanager
    def _row(self) -> Iterator[_Row]:
        """Give the row, to be changed in the block, in a transaction."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._alone(error)
        row = self._read()
        try:
            yield row
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        try:
            self._write(row)
        except sqlite3.Error as error:
            self._alone(error)
            self._write(row)

    def _write(self, row: _Row) -> None:
        self._db.execute(_WRITE, (self._account, *asdict(row).values()))
        if self._db.in_transaction:
            self._db.execute("COMMIT")

    def _alone(self, error: sqlite3.Error) -> None:
        logger.warning("the pace of language models cannot be shared with other processes any more (%s)", error)
        self._db.close()
        self._db = _open(None)


def default_path() -> Path | None:
    """Return the file where this user's processes meet; None, and a warning, where there is no private folder."""
    try:
        return runtime_folder() / FILE
    except OSError as error:
        logger.warning("processes do not share the pace of language models: %s", error)
        return None


def _interval(*limits: float | None) -> float:
    """Return the seconds between two of what the smallest of the limits allows in a minute, 0 without one."""
    return max((60.0 / (SHARE * limit) for limit in limits if limit), default=0.0)


def _until_left(told: Allowance) -> float:
    """Return the seconds until something is left of an allowance, by what is told of it:
    0 if there is, or nothing is told."""
    return told.reset_s if told.remaining is not None and told.remaining < 1 and told.reset_s is not None else 0.0


def _open(path: Path | None) -> sqlite3.Connection:
    # Nothing of it is worth a sync: after a loss of power all of it is stale.
    try:
        return open_shared(path, _SCHEMA, wait_s=2.0, synchronous="OFF")
    except (sqlite3.Error, OSError) as error:
        logger.warning("%s: processes do not share the pace of language models (%s)", path, error)
        return open_shared(None, _SCHEMA)

"""What self-questioning has done so far, in one append-only file, so that a killed run goes on where it was.

A record is `{"kind", "key", "value"}`. Its key is a hash of everything that its value follows from (environment, profile, models, prompts,
parameters), so a changed configuration finds nothing of the old one, and an unchanged one finds all of it. A record counts once its
line is complete: a line that the kill tore is cut off when the file is opened. A key is written once; a second value for it is refused.
One process at a time may write (`JournalInUse`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

Records = dict[str, dict[str, Any]]


class JournalError(RuntimeError):
    """A journal that cannot be used; names the file and the line."""


class JournalInUse(JournalError):
    """Another process is writing this journal."""


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Return a hash of JSON-ready data, whatever the order of its keys."""
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:24]


class Journal:
    """The records of a folder. Use it as a context manager, or call `close`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "journal.jsonl"
        self._lock = _locked(folder / "lock")
        self._records: Records = {}
        if self.path.exists():
            self._records, whole = _scan(self.path)
            os.truncate(self.path, whole)
        self._file = self.path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Bring the file to the disk and let others write."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()
            os.close(self._lock)

    def get(self, kind: str, key: str) -> Any | None:
        """Return the value of a record, or None if there is none."""
        return self._records.get(kind, {}).get(key)

    def put(self, kind: str, key: str, value: Any) -> None:
        """Append a record. It survives the death of this process from here on."""
        known = self._records.setdefault(kind, {})
        if key in known:
            raise JournalError(f"{self.path}: the {kind} {key} is recorded already")
        line = orjson.dumps({"kind": kind, "key": key, "value": value}) + b"\n"
        before = self._file.tell()
        written = self._file.write(line)
        if written != len(line):
            self._file.truncate(before)
            raise JournalError(f"{self.path}: only {written} of {len(line)} bytes could be written; is the disk full?")
        known[key] = value

    @property
    def records(self) -> Records:
        """All records by kind and key."""
        return self._records

    def items(self, kind: str) -> Iterator[tuple[str, Any]]:
        """Return the records of a kind in the order of writing."""
        return iter(list(self._records.get(kind, {}).items()))


def read_journal(folder: Path) -> Records:
    """Return the records of a folder by kind and key without taking its lock; raises JournalError if there are none."""
    path = folder / "journal.jsonl"
    if not path.exists():
        raise JournalError(f"{path}: no such journal; `python -m task_manager explore` begins one")
    return _scan(path)[0]


def _scan(path: Path) -> tuple[Records, int]:
    """Return the records of a file and the length of its complete lines in bytes."""
    records: Records = {}
    whole = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            try:
                record = orjson.loads(line)
                records.setdefault(record["kind"], {})[record["key"]] = record["value"]
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise JournalError(f"{path}:{number}: is no record ({error}); move the folder away to start anew") from error
    return records, whole


def _locked(path: Path) -> int:
    """Open and lock a file for this process; the lock goes with the process, however it ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(handle, 32).decode("ascii", "replace").strip()
        os.close(handle)
        raise JournalInUse(f"{path.parent}: process {owner or '?'} is working in it; wait for it, or give another store") from error
    os.ftruncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())
    return handle

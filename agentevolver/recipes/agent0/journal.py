"""Records of a stage as JSON lines; each is on the disk when `add` returns.

Opening the file cuts off a line torn by a kill. Each key is written once: a recorded result is not computed again, and
a second record of its key is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentevolver.utils.errors import TrainingFailed
from agentevolver.utils.files import append_jsonl, cut_torn, parse, write_jsonl


class RoundJournal:
    """The records of one file by key; the first record creates the file.

    Raises TrainingFailed if a line other than the last one is no record.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self._key = key
        self._records: dict[str, dict[str, Any]] = {}
        for record in _read(path):
            self._take(record)

    def __contains__(self, key: object) -> bool:
        return key in self._records

    def __getitem__(self, key: str) -> dict[str, Any]:
        return self._records[key]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._records.values())

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a record durably; raises TrainingFailed if its key exists."""
        self._take(record)
        append_jsonl(self.path, record)

    def replace(self, records: Iterable[Mapping[str, Any]]) -> None:
        kept = [dict(record) for record in records]
        write_jsonl(self.path, kept)
        self._records = {}
        for record in kept:
            self._take(record)

    def _take(self, record: Mapping[str, Any]) -> None:
        key = str(record[self._key])
        if key in self._records:
            raise TrainingFailed(f"{self.path}: {key} is recorded already; nothing may be made twice")
        self._records[key] = dict(record)


def _read(path: Path) -> list[dict[str, Any]]:
    cut_torn(path)
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    records = []
    for number, line in enumerate(lines, 1):
        record = parse(line)
        if record is None:
            raise TrainingFailed(f"{path}:{number}: not a record; move the file away to make its results again")
        records.append(record)
    return records

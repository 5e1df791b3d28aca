"""Records of a stage, one JSON object a line, each on the disk when `add` returns.

A line that a kill tore is cut off when the file is opened again. A key is written once: what is found in the file is
not made again, and a second record of a key is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentevolver.utils.errors import TrainingFailed
from agentevolver.utils.files import append_jsonl, cut_torn, parse, write_jsonl


class RoundJournal:
    """The records of one file by their key; the file is made by the first record.

    Raises TrainingFailed for a line that is no record, unless it is the last one.
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
        """Append a record, durably; raises TrainingFailed if its key is there already."""
        self._take(record)
        append_jsonl(self.path, record)

    def replace(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write other records in the place of all, whole or not at all."""
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
    """Return the records of a file, whose torn last line is cut off."""
    cut_torn(path)
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    records = []
    for number, line in enumerate(lines, 1):
        record = parse(line)
        if record is None:
            raise TrainingFailed(f"{path}:{number}: is no record; move the file away, and what it held is made again")
        records.append(record)
    return records

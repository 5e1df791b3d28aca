"""Reading JSON lines that another process writes: growing files by offset, whole files by their signature.

A last line without its line break is not there yet. A line that is no JSON object is counted and passed over: what can
be seen of a run should be seen, also after a disk was full.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentevolver.utils.files import open_lines, parse

# So many bytes before the offset are compared, to tell a file that grew from another one of the same name.
_MEMORY = 256


@dataclass(frozen=True, slots=True)
class Line:
    """A complete line: where it begins, and what it says."""

    offset: int
    value: dict[str, Any]


class GrowingFile:
    """The complete lines of a file, each once. A file that was replaced or cut short is begun anew: `generation` then
    changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0
        self.broken = 0
        self._offset = 0
        self._before = b""

    def read(self) -> Iterator[Line]:
        """Yield what was added since the last call (all of it if `generation` has changed); nothing while there is no
        file."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            self._restart()
            return
        with file:
            if not self._is_same(file.fileno()):
                self._restart()
            file.seek(self._offset)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                offset, self._offset = self._offset, self._offset + len(raw)
                self._before = (self._before + raw[-_MEMORY:])[-_MEMORY:]
                value = parse(raw)
                if value is None:
                    self.broken += 1
                else:
                    yield Line(offset, value)

    def _is_same(self, handle: int) -> bool:
        start = self._offset - len(self._before)
        return os.pread(handle, len(self._before), start) == self._before

    def _restart(self) -> None:
        if self._offset:
            self.generation += 1
            self._offset, self._before, self.broken = 0, b"", 0


def read_at(path: Path, offset: int) -> dict[str, Any] | None:
    """Return the object of the line that begins at an offset of a file, compressed or not; None if there is none any
    more."""
    with open_lines(path) as file:
        file.seek(offset)
        return parse(file.readline())


def signature(path: Path) -> tuple[int, int, int] | None:
    """Return what changes whenever a file does, None if it does not exist."""
    try:
        stat = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns

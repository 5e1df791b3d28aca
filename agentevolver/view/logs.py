"""Logs of a run, read while they grow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from agentevolver.utils.secrets import masked_text
from agentevolver.view.experiment import NotThere

# Bytes of a log's end in the first answer, and of new text in each later answer.
TAIL_BYTES = 64 * 1024
CHUNK_BYTES = 256 * 1024
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class Logs:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def files(self) -> list[dict[str, Any]]:
        """Return name, size and modification time of each log, newest first."""
        found = []
        for path in self._folder.glob("*.log") if self._folder.is_dir() else ():
            if path.is_file() and not path.is_symlink():
                stat = path.stat()
                found.append({"name": path.name, "size": stat.st_size, "modified": stat.st_mtime})
        return sorted(found, key=lambda file: -float(file["modified"]))

    def read(self, name: str, offset: int | None = None) -> dict[str, Any]:
        """Return `{text, start, next, size}`: whole lines from a byte offset (None: near the end), and the next offset.

        `start` differs from `offset` if the file was replaced by a shorter one. Raises NotThere.
        """
        if name not in {str(file["name"]) for file in self.files()}:
            raise NotThere(f"there is no log {name!r}")
        with (self._folder / name).open("rb") as file:
            size = file.seek(0, 2)
            fresh = offset is None or offset > size
            start = max(0, size - TAIL_BYTES) if fresh or offset is None else offset
            file.seek(start)
            raw = file.read(TAIL_BYTES if fresh else CHUNK_BYTES)
        if fresh and start:
            cut = raw.find(b"\n") + 1
            start, raw = start + cut, raw[cut:]
        # An unfinished line waits for the next answer, unless the line alone exceeds an answer.
        whole = raw.rfind(b"\n") + 1
        if whole == 0 and len(raw) < CHUNK_BYTES:
            raw = b""
        elif whole:
            raw = raw[:whole]
        return {
            "text": masked_text(_plain(raw.decode("utf-8", "replace"))),
            "start": start,
            "next": start + len(raw),
            "size": size,
        }


def _plain(text: str) -> str:
    lines = _ESCAPES.sub("", text).replace("\r\n", "\n").split("\n")
    # A carriage return overwrites the line (progress bars): only the last version is shown.
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)

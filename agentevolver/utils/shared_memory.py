"""Shared memory that processes leave when they are killed: files under /dev/shm that nobody would ever remove.

vLLM's message queues and Python's semaphores live there, and Ray ends its workers without asking them. A segment is a
run's if one of the run's processes maps it, which only shows while that process lives; it is removed when no process
maps it any more.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from agentevolver.utils.processes import carriers

FOLDER = "/dev/shm/"


def attached(run_id: str) -> set[Path]:
    """Return the segments that a run's processes map now, and the semaphores that name one of them as their maker."""
    pids = {process.pid for process in carriers(run_id)}
    return _mapped(pids) | {
        path for path in Path(FOLDER).glob("sem.*-*") if pids & {int(n) for n in re.findall(r"-(\d+)-", path.name)}
    }


class SegmentWatch:
    """Notes the segments of a run in a file as they appear. While none does, a look costs one listing of /dev/shm."""

    def __init__(self, run_id: str, file: Path) -> None:
        self._run_id = run_id
        self._file = file
        self._noted = noted(file)
        self._listed: set[int] = set()
        self._again = False

    def look(self) -> None:
        """Note new segments of the run; one that is made while this looks is found by the next look."""
        listed = {entry.inode() for entry in os.scandir(FOLDER)}
        new = not listed <= self._listed
        if new or self._again:
            self._note(attached(self._run_id))
        self._listed, self._again = listed, new

    def _note(self, segments: set[Path]) -> None:
        lines = ""
        for path in sorted(segments - self._noted):
            with contextlib.suppress(OSError):  # it is gone already
                lines += f"{path.stat().st_ino} {path.name}\n"
        if lines:
            # On a line of its own, even where a full disk has cut off the last one.
            with open(
                self._file, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)
            ) as file:
                file.write(f"\n{lines}")
        self._noted |= segments


def noted(file: Path) -> set[Path]:
    """Return the noted segments that are still there: of the same name and inode. A line that is cut off counts for
    nothing."""
    found = set()
    with contextlib.suppress(FileNotFoundError):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            inode, _, name = line.partition(" ")
            path = Path(FOLDER) / name
            with contextlib.suppress(OSError):
                if name and "/" not in name and inode.isdecimal() and path.stat().st_ino == int(inode):
                    found.add(path)
    return found


def remove_unused(segments: Iterable[Path]) -> int:
    """Remove those segments that no process maps; returns how many bytes they took."""
    left = {path for path in segments if path.exists()}
    if not left:
        return 0
    freed = 0
    in_use = _mapped_inodes(int(name) for name in os.listdir("/proc") if name.isdecimal())
    for path in left:
        with contextlib.suppress(OSError):
            found = path.stat()
            if found.st_ino not in in_use:
                path.unlink()
                freed += found.st_blocks * 512
    return freed


def _mapped(pids: Iterable[int]) -> set[Path]:
    """Return the segments that these processes map; none where there is no folder of segments that can be listed."""
    inodes = _mapped_inodes(pids)
    try:
        with os.scandir(FOLDER) as entries:
            return {Path(entry.path) for entry in entries if entry.inode() in inodes}
    except OSError:
        return set()


def _mapped_inodes(pids: Iterable[int]) -> set[int]:
    inodes = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:  # ended meanwhile, or another user's
            continue
        # By inode, the fifth field: a semaphore is made under another name than the one it keeps.
        inodes |= {int(line.split(maxsplit=5)[4]) for line in maps.splitlines() if f" {FOLDER}" in line}
    return inodes

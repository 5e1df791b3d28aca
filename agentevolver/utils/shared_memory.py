"""Shared memory that processes leave when they are killed: files under /dev/shm that nobody would ever remove.

vLLM's message queues and Python's semaphores live there, and Ray ends its workers without asking them. A segment is a run's if one of
the run's processes maps it, which only shows while that process lives; it is removed when no process maps it any more.
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
    return _mapped(pids) | {path for path in Path(FOLDER).glob("sem.*-*") if pids & {int(n) for n in re.findall(r"-(\d+)-", path.name)}}


class SegmentWatch:
    """The segments of a run, noted as they appear. While none does, a look costs one listing of /dev/shm."""

    def __init__(self, run_id: str) -> None:
        self.segments: set[Path] = set()
        self._run_id = run_id
        self._listed: set[int] = set()
        self._again = False

    def look(self) -> None:
        """Note new segments of the run; one that is made while this looks is found by the next look."""
        listed = {entry.inode() for entry in os.scandir(FOLDER)}
        new = not listed <= self._listed
        if new or self._again:
            self.segments |= attached(self._run_id)
        self._listed, self._again = listed, new


def remove_unused(segments: Iterable[Path]) -> None:
    """Remove those segments that no process maps."""
    left = {path for path in segments if path.exists()}
    if left:
        in_use = _mapped(int(name) for name in os.listdir("/proc") if name.isdecimal())
        for path in left - in_use:
            with contextlib.suppress(OSError):
                path.unlink()


def _mapped(pids: Iterable[int]) -> set[Path]:
    inodes = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:  # ended meanwhile, or another user's
            continue
        # By inode, the fifth field: a semaphore is made under another name than the one it keeps.
        inodes |= {int(line.split(maxsplit=5)[4]) for line in maps.splitlines() if f" {FOLDER}" in line}
    return {Path(entry.path) for entry in os.scandir(FOLDER) if entry.inode() in inodes}

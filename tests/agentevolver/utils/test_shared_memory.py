"""Shared memory of killed processes is removed, and that of living ones is not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentevolver.utils.processes import RUN_ID, SegmentWatch, attached, noted, remove_unused

pytestmark = pytest.mark.service

HOLD = (
    "import sys\nfrom multiprocessing import resource_tracker, shared_memory\n"
    "resource_tracker.register = lambda *_: None\n"
    "one = shared_memory.SharedMemory(name=sys.argv[1] if len(sys.argv) > 1 else None, create=len(sys.argv) == 1, "
    "size=4096)\n"
    "print(one.name, flush=True)\nsys.stdin.read()\n"
)


class Holder:
    """A process that maps a segment and never removes it."""

    def __init__(self, *name: str, **env: str) -> None:
        argv = [sys.executable, "-c", HOLD, *name]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}
        )
        assert self.process.stdout is not None
        self.segment = Path("/dev/shm") / self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def holder() -> Iterator[Holder]:
    one = Holder(**{RUN_ID: "shm-run"})
    yield one
    one.kill()
    one.segment.unlink(missing_ok=True)


def test_segments_are_noted_on_disk_and_found_when_their_processes_are_gone(holder: Holder, tmp_path: Path) -> None:
    notes = tmp_path / "shm-run.segments"
    watch = SegmentWatch("shm-run", notes)
    watch.look()
    assert noted(notes) == {holder.segment} and notes.stat().st_mode & 0o777 == 0o600
    later = Holder(**{RUN_ID: "shm-run"})
    try:
        watch.look()
        assert noted(notes) == {holder.segment, later.segment}
    finally:
        later.kill()
    holder.kill()
    holder.segment.write_bytes(bytes(5000))
    assert remove_unused(noted(notes)) == 8192, "pages that are in use"
    assert noted(notes) == set() and not holder.segment.exists() and not later.segment.exists()


def test_a_segment_of_somebody_elses_that_has_the_name_now_is_not_taken_for_the_runs(
    holder: Holder, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    inode = holder.segment.stat().st_ino
    notes.write_text(
        f"{inode + 1} {holder.segment.name}\n{inode} ../{holder.segment}\n{inode}\n\nodd\n{inode} "
        f"{holder.segment.name[:-1]}"
    )
    assert noted(notes) == set()
    assert noted(tmp_path / "none") == set()
    SegmentWatch("shm-run", notes).look()
    assert noted(notes) == {holder.segment}, "written after a line that was cut off"


def test_what_somebody_else_maps_stays(holder: Holder) -> None:
    neighbour = Holder(holder.segment.name)
    try:
        segments = attached("shm-run")
        holder.kill()
        remove_unused(segments)
        assert holder.segment.exists()
    finally:
        neighbour.kill()

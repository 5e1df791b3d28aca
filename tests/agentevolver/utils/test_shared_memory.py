"""Shared memory of killed processes is removed, and that of living ones is not."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentevolver.utils.processes import RUN_ID, SegmentWatch, attached, carriers, noted, remove_unused

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


def test_a_segment_is_a_runs_as_long_as_one_of_its_processes_maps_it(holder: Holder) -> None:
    assert holder.segment in attached("shm-run")
    assert attached("another-run") == set()
    holder.kill()
    assert holder.segment.exists() and attached("shm-run") == set()


def test_what_nobody_maps_any_more_is_removed(holder: Holder) -> None:
    segments = attached("shm-run")
    holder.kill()
    remove_unused(segments)
    assert not holder.segment.exists()


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


def test_a_semaphore_that_its_process_did_not_remove_is_removed() -> None:
    code = (
        "import multiprocessing\n"
        "lock = multiprocessing.get_context('spawn').Lock()\n"
        "print(lock._semlock.name, flush=True)\n"
        "import sys; sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, RUN_ID: "sem-run"},
    )
    assert process.stdout is not None
    segment = Path("/dev/shm") / f"sem.{process.stdout.readline().strip().lstrip('/')}"
    segments = attached("sem-run")
    assert segment in segments
    deadline = time.monotonic() + 30
    while len(carriers("sem-run")) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    # First Python's tracker of such things, which would tidy up as soon as the process has gone.
    for carrier in sorted(carriers("sem-run"), key=lambda one: one.pid == process.pid):
        os.kill(carrier.pid, signal.SIGKILL)
    process.communicate()
    assert segment.exists()
    remove_unused(segments)
    assert not segment.exists()


def test_what_somebody_else_maps_stays(holder: Holder) -> None:
    neighbour = Holder(holder.segment.name)
    try:
        segments = attached("shm-run")
        holder.kill()
        remove_unused(segments)
        assert holder.segment.exists()
    finally:
        neighbour.kill()


def test_a_folder_that_cannot_be_listed_has_no_segments_and_loses_none(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = attached("shm-run")

    def refuse(*_: object) -> None:
        raise PermissionError("not for you")

    monkeypatch.setattr("os.scandir", refuse)
    assert attached("shm-run") == set()
    assert remove_unused(segments) == 0 and holder.segment.exists()
    monkeypatch.setattr("agentevolver.utils.processes.SHARED_MEMORY", "/proc/not-there/")
    assert attached("shm-run") == set()

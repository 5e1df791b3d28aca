"""Processes of a run: identity, ending, death with the parent, and removal of leftover shared memory.

Every process of a run has the run's id in its environment, so even processes that left their group and parent (Ray's
workers) are found. A zombie counts as ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN_ID = "AGENTEVOLVER_RUN_ID"
SERVICE = "AGENTEVOLVER_SERVICE"
KILL_WAIT_S = 5.0
SHARED_MEMORY = "/dev/shm/"
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class ProcessId:
    """Pid and start time (clock ticks since boot): the kernel reuses pids."""

    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        return identify(self.pid) == self

    def arguments(self) -> list[bytes]:
        """Return the command line, or [] if the process has ended."""
        try:
            line = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return []
        return line.split(b"\0") if self.alive else []


def is_plain(path: str) -> bool:
    """Whether a path means the same to a shell, to Ray's command lines and in a list such as LD_PRELOAD."""
    return re.fullmatch(r"[A-Za-z0-9_./+@%-]+", path) is not None


def plain_python(link: Path) -> str:
    """Return the path of this Python: through `link`, a link to `sys.prefix`, unless it is plain."""
    # Ray (2.60) pastes the path of the Python that started it into command lines without quotes.
    return sys.executable if is_plain(sys.executable) else str(link / "bin" / Path(sys.executable).name)


def boot_id() -> str:
    """Return the id of the kernel's boot. Pids and start times are valid only within it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def identify(pid: int) -> ProcessId | None:
    """Return the identity of a running process, or None."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # Not psutil's `create_time`: it depends on the clock, which may be set, and identities are written to files. The
    # command name in parentheses may hold any characters; after it, state is the 1st field and starttime the 20th.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZXx" else ProcessId(pid, int(fields[19]))


def carriers(run_id: str, service: str | None = None) -> set[ProcessId]:
    """Return this user's running processes with the run's id (and the service's name) in their environment."""
    wanted = {f"{RUN_ID}={run_id}".encode()}
    if service is not None:
        wanted.add(f"{SERVICE}={service}".encode())
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        identity = identify(int(name))
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:  # ended meanwhile, or another user's
            continue
        if identity is not None and wanted <= set(environment.split(b"\0")):
            found.add(identity)
    return found


def end(processes: Iterable[ProcessId], grace_s: float) -> set[ProcessId]:
    """End processes by SIGTERM, and by SIGKILL after `grace_s` seconds; returns the survivors."""
    left = {process for process in processes if process.alive}
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_WAIT_S)):
        for process in left:
            send(process, number)
        left = wait_gone(left, wait_s)
        if not left:
            break
    return left


def end_carriers(run_id: str, grace_s: float, service: str | None = None) -> set[ProcessId]:
    """End every process of a run (of one service); returns the survivors."""
    deadline = time.monotonic() + grace_s + 2 * KILL_WAIT_S
    survivors: set[ProcessId] = set()
    # A dying parent may still start children: look again until none is left.
    while found := carriers(run_id, service):
        survivors = end(found, grace_s)
        grace_s = 0.0
        if time.monotonic() > deadline:
            return survivors | carriers(run_id, service)
    return set()


def send(process: ProcessId, number: signal.Signals) -> None:
    if process.alive:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return


def wait_gone(processes: Iterable[ProcessId], timeout_s: float) -> set[ProcessId]:
    """Wait for the end of processes; returns those left after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    left = {process for process in processes if process.alive}
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = {process for process in left if process.alive}
    return left


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel signal this process when `parent` ends; exits at once if it has ended. Holds beyond `exec`."""
    # The kernel watches the thread that forked this process, not the whole parent.
    if _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def reseed() -> None:
    """Give a forked process its own numpy random numbers."""
    # The standard library's generator reseeds itself after a fork.
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(os.urandom(4), "little"))


def attached(run_id: str) -> set[Path]:
    """Return the shared memory that a run's processes map now, and the semaphores whose names contain their pids."""
    # vLLM's message queues and Python's semaphores lie in /dev/shm, and Ray kills its workers without cleanup. Only a
    # live process shows its mappings.
    pids = {process.pid for process in carriers(run_id)}
    return _mapped(pids) | {
        path
        for path in Path(SHARED_MEMORY).glob("sem.*-*")
        if pids & {int(n) for n in re.findall(r"-(\d+)-", path.name)}
    }


class SegmentWatch:
    """Records a run's shared memory segments in a file, so that they can be removed after a kill."""

    def __init__(self, run_id: str, file: Path) -> None:
        self._run_id = run_id
        self._file = file
        self._noted = noted(file)
        self._listed: set[int] = set()
        self._again = False

    def look(self) -> None:
        """Record new segments; one created during the call is found next time."""
        # If nothing is new, this costs one listing.
        listed = {entry.inode() for entry in os.scandir(SHARED_MEMORY)}
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
            # The leading line break ends a line that a full disk has cut off.
            with open(
                self._file, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)
            ) as file:
                file.write(f"\n{lines}")
        self._noted |= segments


def noted(file: Path) -> set[Path]:
    """Return recorded segments that still exist with the same inode."""
    found = set()
    with contextlib.suppress(FileNotFoundError):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            inode, _, name = line.partition(" ")
            path = Path(SHARED_MEMORY) / name
            with contextlib.suppress(OSError):
                if name and "/" not in name and inode.isdecimal() and path.stat().st_ino == int(inode):
                    found.add(path)
    return found


def remove_unused(segments: Iterable[Path]) -> int:
    """Remove segments that no process maps; returns the freed bytes."""
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
    inodes = _mapped_inodes(pids)
    try:
        with os.scandir(SHARED_MEMORY) as entries:
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
        # By inode, the fifth field: a semaphore is created under a temporary name.
        inodes |= {int(line.split(maxsplit=5)[4]) for line in maps.splitlines() if f" {SHARED_MEMORY}" in line}
    return inodes

"""Process identity (pid and start time, from /proc), ending processes without ever hitting another one, and death with
the parent.

A pid alone proves nothing, since it is used again; with the start time (clock ticks since boot) and the boot's id it
does. A process that exists but has ended and was not reaped (a zombie) counts as gone. Every process of a run carries
the run's id in its environment, so that processes which left their group and parent (Ray's workers do) are found as
well.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

RUN_ID = "AGENTEVOLVER_RUN_ID"
SERVICE = "AGENTEVOLVER_SERVICE"
KILL_WAIT_S = 5.0
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class ProcessId:
    """A process for all time: its pid and when it started."""

    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """Whether exactly this process still runs."""
        return identify(self.pid) == self

    def arguments(self) -> list[bytes]:
        """Return its command line, nothing if it does not run any more."""
        try:
            line = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return []
        return line.split(b"\0") if self.alive else []


def boot_id() -> str:
    """Return the id of the kernel's boot; pids and start times mean nothing beyond it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> str:
    """Return the name of the namespace in which this process's pids count: that of a container, or the machine's."""
    return os.readlink("/proc/self/ns/pid")


def identify(pid: int) -> ProcessId | None:
    """Return the identity of a running process, None if there is none or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name stands in parentheses and may hold anything; state is the 1st field after it, starttime the 20th.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZXx" else ProcessId(pid, int(fields[19]))


def carriers(run_id: str, service: str | None = None) -> set[ProcessId]:
    """Return the running processes of this user whose environment holds the run's id (and the service's name)."""
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
    """End processes: SIGTERM, and SIGKILL for those that are left after `grace_s` seconds. Returns those that outlive
    even that."""
    left = {process for process in processes if process.alive}
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_WAIT_S)):
        for process in left:
            send(process, number)
        left = wait_gone(left, wait_s)
        if not left:
            break
    return left


def end_carriers(run_id: str, grace_s: float, service: str | None = None) -> set[ProcessId]:
    """End every process of a run (of one service); looks again until none is left, for a dying parent may still start
    children."""
    deadline = time.monotonic() + grace_s + 2 * KILL_WAIT_S
    survivors: set[ProcessId] = set()
    while found := carriers(run_id, service):
        survivors = end(found, grace_s)
        grace_s = 0.0
        if time.monotonic() > deadline:
            return survivors | carriers(run_id, service)
    return set()


def send(process: ProcessId, number: signal.Signals) -> None:
    """Send a signal to exactly this process, if it still runs."""
    if process.alive:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return


def wait_gone(processes: Iterable[ProcessId], timeout_s: float) -> set[ProcessId]:
    """Wait until the processes are gone; returns those that are not after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    left = {process for process in processes if process.alive}
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = {process for process in left if process.alive}
    return left


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when `parent` ends; exits at once if it already has. Holds beyond
    `exec`.

    What counts is the end of the parent's thread that forked this process.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)

"""Process hygiene of hosts and workers on Linux: output, memory limit, orphans, secrets, and temporary folders."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import signal
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from agentevolver.utils.processes import is_plain

PR_SET_CHILD_SUBREAPER = 36
M_ARENA_MAX = -8
OOM_SCORE = "500"
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def silence() -> None:
    # An environment that prints a lot must fill neither a disk nor a log.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def limit_memory(memory_mb: int) -> None:
    """Let this process grow by at most `memory_mb` MiB of address space; 0 means no limit."""
    if memory_mb <= 0:
        return
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    _libc.mallopt(
        M_ARENA_MAX, 2
    )  # a malloc arena reserves 64 MiB of address space per thread, which would count as used
    limit = used + memory_mb * 1024 * 1024
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def adopt_orphans() -> None:
    # Daemons of foreign code lose their parents: as their new parent, this process can kill them.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def be_first_to_go() -> None:
    # If memory runs out, the kernel kills this process before the service.
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write(OOM_SCORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # a zombie's group raises either, depending on the kernel
        return


def children() -> set[int]:
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as listing:
                found.update(int(text) for text in listing.read().split())
        except FileNotFoundError:  # the thread ended, or the kernel does not list children
            continue
    return found


def secret_variables(environ: Mapping[str, str], keep: Iterable[str]) -> list[str]:
    """Return the names of variables that look like secrets and are not in `keep`."""
    return [name for name in environ if _SECRET.search(name) and name not in set(keep)]


def without_secrets(environ: Mapping[str, str], keep: Iterable[str]) -> dict[str, str]:
    """Return the variables that foreign code may see: no secrets except `keep`, and none of Ray's."""
    allowed = {*keep}
    hidden = {*secret_variables(environ, allowed)}
    return {
        name: value
        for name, value in environ.items()
        if name in allowed or not (name in hidden or name.startswith("RAY_"))
    }


PREFIX = "env_service-"
SOCKET_CHARS = 107
OWN_CHARS = len(f"/{PREFIX}4194304-12345678")


def new_folder(inside: int) -> str:
    """Return a new folder that only this user can enter.

    Args:
        inside: characters of the longest socket path in it, from the slash on.
    """
    # The run's own temporary folder goes with the run, but its path may be too long for a socket.
    root = tempfile.gettempdir()
    if len(root) + OWN_CHARS + inside > SOCKET_CHARS or not is_plain(root):
        root = "/tmp"
    # Folders of services that were killed.
    for stale in Path(root).glob(f"{PREFIX}*"):
        owner = stale.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            remove_folder(str(stale))
    return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root)


def remove_folder(path: str | None) -> None:
    if path is not None:
        # A folder of another user, or one in use, is left to the next sweep.
        shutil.rmtree(path, ignore_errors=True)

"""Puts the process that executes an agent's code behind the same walls as the python tool's interpreter.

Those are namespaces (mount, pid, net, ipc, uts, cgroup, user unless privileged), a read-only root that holds the venv
and the data of the episode and nothing else, a user without rights, a bound on threads, and the system-call filter: no
socket of any kind, no process. What cannot be put in place raises Unconfined, and the agent's code is not run.
"""

from __future__ import annotations

import os
import resource
import signal
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from . import sandbox

if TYPE_CHECKING:
    from env_service.environments.python_tool.sandbox import layers, linux, seccomp, view
else:  # `start.py` loads that folder under this name: the worker knows nothing else of the project
    from python_sandbox import layers, linux, seccomp, view

THREADS = 64
_SCRATCH_MB = 16


class Unconfined(RuntimeError):
    """The walls that were asked for cannot be put up here."""


def confine(kind: str, readable: Sequence[str], directory: str, hidden: Sequence[str]) -> None:
    """Go behind the walls of a `kind`, for good; with `namespaces` this returns in a child, while the caller waits for
    its end.

    namespaces: all of the above. landlock: `sandbox.confine`, which leaves UDP, unix sockets by path and file modes
        open, and bounds no
    processes. none: nothing. `hidden` are paths that must not be visible afterwards. Raises Unconfined.
    """
    try:
        if kind == "namespaces":
            _enter(readable, directory, hidden)
        elif kind == "landlock" and not sandbox.confine([*readable, *sandbox.SYSTEM], [directory, "/dev/null"]):
            raise OSError("this kernel has no Landlock")
    except (OSError, linux.SandboxSetupError) as error:
        raise Unconfined(
            f"refusing to run an agent's code unconfined: {error}; {layers.HINT}. To accept that it can reach more of "
            "this machine, "
            "start the service with APPWORLD_CONFINEMENT=landlock (files and TCP are closed) or none"
        ) from error


def _enter(readable: Sequence[str], directory: str, hidden: Sequence[str]) -> None:
    counted = os.geteuid() != 0
    uid = layers.enter_namespaces()
    if uid is None and not counted:
        raise linux.SandboxSetupError(
            "the kernel does not count the threads of a root without CAP_SYS_ADMIN; use an ordinary user"
        )
    if uid is not None:
        _give(directory, uid)
    linux.set_hostname("sandbox")
    _close_folders()
    view.enter([], _SCRATCH_MB, [path for path in readable if os.path.exists(path)], [directory])
    layers.drop_privileges(uid)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # the change of identity has cleared it
    child = os.fork()
    if child:
        _wait_for(child)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_NPROC, (THREADS, THREADS))
    seccomp.install(threads=True)
    layers.prove_containment(hidden)


def _wait_for(child: int) -> NoReturn:
    status = os.waitpid(child, 0)[1]
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _give(directory: str, uid: int) -> None:
    os.chown(directory, uid, uid)
    for folder, subfolders, files in os.walk(directory):
        for name in (*subfolders, *files):
            os.chown(os.path.join(folder, name), uid, uid, follow_symlinks=False)


def _close_folders() -> None:
    """Close descriptors of folders: they lead to the old root."""
    for number in _descriptors():
        with suppress(OSError):
            if stat.S_ISDIR(os.fstat(number).st_mode):
                os.close(number)


def _descriptors() -> Iterable[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]

"""Confinement of the process that executes an agent's code: the python tool's namespaces, or Landlock.

The namespaces come with a read-only root, a user without rights, a bound on threads, and the system-call filter.
Landlock (Linux 5.13) is weaker: it blocks other files, TCP, signals and abstract sockets, but not UDP, unix sockets
with a path, changes of file modes, or new processes. Without confinement, Unconfined is raised and no code is run.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import stat
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

MEMORY_LIMIT_BYTES = 4 * 1024**3
FILE_LIMIT_BYTES = 1024**3
OOM_SCORE = "500"
SYSTEM = (sys.base_prefix, "/usr", "/lib", "/lib64", "/dev/urandom")
"""What a process under Landlock reads beside its own files."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PR_SET_NO_NEW_PRIVS = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_READ = _EXECUTE | _READ_FILE | _READ_DIR
# Highest right known to each version of the interface: 13 rights, then REFER, TRUNCATE and IOCTL_DEV.
_ALL_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL_LATER = (1 << 16) - 1
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_TCP = 0b11
_SCOPES = 0b11


def limit_resources() -> None:
    """Limit address space and file size, disable core files, and be killed first if memory runs out. Lower limits
    stay."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write(OOM_SCORE)
    limits = (
        (resource.RLIMIT_AS, MEMORY_LIMIT_BYTES),
        (resource.RLIMIT_FSIZE, FILE_LIMIT_BYTES),
        (resource.RLIMIT_CORE, 0),
    )
    for kind, wanted in limits:
        _, hard = resource.getrlimit(kind)
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (limit, limit))


def restrict(readable: Iterable[str], writable: Iterable[str]) -> bool:
    """Restrict this process and its children permanently to these folders and files; False if the kernel lacks
    Landlock.

    Raises OSError if the kernel refuses a rule.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(_CREATE_RULESET, None, 0, 1)
    if abi < 1:
        return False
    handled = _ALL_BY_ABI.get(abi, _ALL_LATER)
    attributes = struct.pack("QQQ", handled, _TCP if abi >= 4 else 0, _SCOPES if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = _checked(libc.syscall(_CREATE_RULESET, attributes, size, 0), "create a ruleset")
    try:
        for path in readable:
            _allow(libc, ruleset, path, handled & _READ)
        for path in writable:
            _allow(libc, ruleset, path, handled)
        _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "give up new privileges")
        _checked(libc.syscall(_RESTRICT_SELF, ruleset, 0), "enforce the ruleset")
    finally:
        os.close(ruleset)
    return True


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    if not os.path.exists(path):
        return
    if not os.path.isdir(path):
        rights &= _FILE_RIGHTS
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, handle)
        _checked(libc.syscall(_ADD_RULE, ruleset, 1, rule, 0), f"add the path {path}")
    finally:
        os.close(handle)


def _checked(result: int, action: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock could not {action}: {os.strerror(code)}")
    return result


if TYPE_CHECKING:
    from env_service.environments.python_tool.sandbox import layers, linux, seccomp, view
else:  # `start.py` loads that folder under this name: the worker knows nothing else of the project
    from python_sandbox import layers, linux, seccomp, view

THREADS = 64
_SCRATCH_MB = 16


class RootUnreadable(RuntimeError):
    """Under root, an agent's code runs as another user, who cannot read AppWorld's files."""


class Unconfined(RuntimeError):
    """The requested confinement is not possible here."""


def confine(kind: str, readable: Sequence[str], directory: str, hidden: Sequence[str]) -> None:
    """Confine this process permanently. `namespaces`: returns in a child, while the caller waits for its end;
    `landlock`: as `restrict`; `none`: nothing. `hidden` paths must be invisible afterwards. Raises Unconfined, or
    RootUnreadable if only root can read `readable`."""
    try:
        if kind == "namespaces":
            _enter(readable, directory, hidden)
        elif kind == "landlock" and not restrict([*readable, *SYSTEM], [directory, "/dev/null"]):
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
        demand_readable(readable)
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


def demand_readable(paths: Sequence[str]) -> None:
    """Raise RootUnreadable for a path that others cannot read, as after an installation by root with the umask 077."""
    for path in filter(os.path.exists, paths):
        mode = os.stat(path).st_mode
        wanted = 0o005 if stat.S_ISDIR(mode) else 0o004
        if mode & wanted != wanted:
            raise RootUnreadable(
                f"other users cannot read {path} (mode {stat.S_IMODE(mode):o}), but a service run by root runs agents' "
                "code as another user; open AppWorld's venv and data with `chmod -R go+rX`"
            )


def _wait_for(child: int) -> NoReturn:
    status = os.waitpid(child, 0)[1]
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _give(directory: str, uid: int) -> None:
    os.chown(directory, uid, uid)
    for folder, subfolders, files in os.walk(directory):
        for name in (*subfolders, *files):
            os.chown(os.path.join(folder, name), uid, uid, follow_symlinks=False)


def _close_folders() -> None:
    for number in _descriptors():
        with suppress(OSError):
            if stat.S_ISDIR(os.fstat(number).st_mode):
                os.close(number)


def _descriptors() -> Iterable[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]

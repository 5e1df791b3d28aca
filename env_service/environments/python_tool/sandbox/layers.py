"""Layers around every process that runs an agent's code: namespaces, a user without rights, and a self-test.

Shared by the interpreter's launcher and by AppWorld's workers. All of it is irreversible for the calling process.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence

from . import linux

INSIDE_ID = 1000
"""User and group id that a process in a user namespace sees."""
HINT = (
    "the sandbox needs Linux 5.14 or newer and either root with CAP_SYS_ADMIN or unprivileged user namespaces "
    "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; "
    "in a container: --cap-add SYS_ADMIN, or a seccomp profile that allows unshare and mount)"
)
_FIRST_SPARE_UID = 0x4000_0000
_HIDDEN = ("/etc/passwd", "/proc/self")
_NAMESPACES = (
    linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWCGROUP
)


def spare_uid() -> int | None:
    """Return an unused user id, different for each live process (the thread limit counts by user), or None if none is
    mapped."""
    with open("/proc/self/uid_map", encoding="ascii") as table:
        ranges = [(int(inside), int(length)) for inside, _, length in (line.split() for line in table)]
    for wanted in (_FIRST_SPARE_UID + os.getpid(), 20000 + os.getpid() % 40000):
        if any(start <= wanted < start + length for start, length in ranges):
            return wanted
    return None


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _enter_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER | _NAMESPACES)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{INSIDE_ID} {uid} 1")
    _write("/proc/self/gid_map", f"{INSIDE_ID} {gid} 1")


def enter_namespaces() -> int | None:
    """Enter the namespaces (the pid namespace holds for the next child); raises SandboxSetupError.

    Returns the user id for `drop_privileges`, or None if a user namespace makes that unnecessary.
    """
    uid = spare_uid() if os.geteuid() == 0 else None
    if uid is not None:
        try:
            linux.unshare(_NAMESPACES)
            return uid
        except linux.SandboxSetupError:
            pass  # root without CAP_SYS_ADMIN (a plain container): the way of an ordinary user may still be open
    _enter_user_namespace()
    return None


def drop_privileges(uid: int | None) -> None:
    """Give up every identity and capability; irreversible."""
    linux.drop_bounding_set()
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)


def prove_containment(hidden: Sequence[str] = ()) -> None:
    """Try forbidden actions from inside; raises SandboxSetupError if one succeeds. `hidden`: further paths that must be
    invisible."""
    leaks = []
    if linux.libc.socket(2, 1, 0) != -1 or ctypes.get_errno() != errno.EPERM:
        leaks.append("a socket can be opened")
    if any(os.path.exists(path) for path in (*_HIDDEN, *hidden)):
        leaks.append("host files are visible")
    if linux.effective_capabilities() or os.getuid() == 0:
        leaks.append("privileges are left")
    if os.getpid() != 1:
        leaks.append("other processes are visible")
    try:
        if os.fork() == 0:
            os._exit(0)
        leaks.append("a process can be created")
    except PermissionError:
        pass
    if leaks:
        raise linux.SandboxSetupError("the finished sandbox has leaks: " + "; ".join(leaks))

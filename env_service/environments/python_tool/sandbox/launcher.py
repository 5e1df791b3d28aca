"""The process between the service and the interpreter: builds the sandbox, starts the interpreter in it, ends it.

Run as `python -I -S`, single-threaded and with an empty environment. Its standard input carries one line of JSON and then stays
open as a life line: when the service closes it, or dies, the interpreter is killed. If any layer cannot be put in place, or the
finished sandbox lets through what it must not, the reason goes to the control descriptor and nothing is run.

Layers: namespaces (mount, pid, net, ipc, uts, cgroup; user too unless privileged) - a private read-only view - an unprivileged
user without capabilities - no_new_privs - resource limits - the system-call filter - a self-test from inside.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import select
import signal
import sys
from typing import Any, NoReturn

from . import interpreter, linux, seccomp, view

INSIDE_ID = 1000
"""User and group id that the interpreter sees."""
_FIRST_SPARE_UID = 0x4000_0000
_PROBE = "/etc/passwd"
_ENVIRONMENT = {
    "HOME": view.SCRATCH,
    "TMPDIR": view.SCRATCH,
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP
_HINT = (
    "the sandbox needs Linux 5.14 or newer and either root with CAP_SYS_ADMIN or unprivileged user namespaces "
    "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; "
    "in a container: --cap-add SYS_ADMIN, or a seccomp profile that allows unshare and mount)"
)


def _spare_uid() -> int | None:
    """Return a user id of nobody's, different for every live launcher (the thread limit counts by user); None if none is mapped."""
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
    """Become the owner of new namespaces as an ordinary user."""
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER | _NAMESPACES)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{INSIDE_ID} {uid} 1")
    _write("/proc/self/gid_map", f"{INSIDE_ID} {gid} 1")


def _enter_namespaces() -> int | None:
    """Enter the namespaces; return the user id to become afterwards, None where a user namespace did that already."""
    uid = _spare_uid() if os.geteuid() == 0 else None
    if uid is not None:
        try:
            linux.unshare(_NAMESPACES)
            return uid
        except linux.SandboxSetupError:
            pass  # root without CAP_SYS_ADMIN (a plain container): the way of an ordinary user may still be open
    _enter_user_namespace()
    return None


def _drop_privileges(uid: int | None) -> None:
    """Give up every identity and capability; irreversible."""
    linux.drop_bounding_set()
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)


def _limit(limits: dict[str, Any]) -> None:
    """Set hard limits; without CAP_SYS_RESOURCE they cannot be raised again."""
    mebi = 2**20
    memory = resource.getrlimit(resource.RLIMIT_AS)[1]
    if memory != resource.RLIM_INFINITY and memory < limits["memory_mb"] * mebi:
        raise linux.SandboxSetupError(
            f"the interpreter is to have {limits['memory_mb']} MB of memory, but its parent may hand down only {memory // mebi}; "
            "raise the service's limit (--memory-mb, ulimit -v) or lower ENV_PYTHON_MEMORY_MB"
        )
    for kind, value in (
        (resource.RLIMIT_AS, limits["memory_mb"] * mebi),
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_FSIZE, limits["file_mb"] * mebi),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_NPROC, limits["threads"] + 1),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 64),
    ):
        inherited = resource.getrlimit(kind)[1]
        value = value if inherited == resource.RLIM_INFINITY else min(value, inherited)
        resource.setrlimit(kind, (value, value))


def _arrange_descriptors(control: int) -> int:
    """Leave 0 (nothing), 1 and 2 (output pipe) and the control descriptor; close the rest. Returns the control descriptor."""
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    kept = 3
    if control != kept:
        os.dup2(control, kept)
    os.closerange(kept + 1, 4096)
    return kept


def _prove_containment() -> None:
    """Try from inside what must fail; raise SandboxSetupError for anything that works."""
    leaks = []
    if linux.libc.socket(2, 1, 0) != -1 or ctypes.get_errno() != errno.EPERM:
        leaks.append("a socket can be opened")
    if os.path.exists(_PROBE) or os.path.exists("/proc/self"):
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
        raise linux.SandboxSetupError("the finished sandbox is not tight: " + "; ".join(leaks))


def _close_the_door(limits: dict[str, Any], threads: bool) -> None:
    """Put the last layers on the first process of the pid namespace, and test them."""
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    os.environ.clear()
    os.environ.update(_ENVIRONMENT)
    os.chdir(view.SCRATCH)
    sys.argv = [""]
    sys.dont_write_bytecode = True
    sys.path[:] = [path for path in sys.path[:-1] if os.path.isdir(path)] + [view.PACKAGES]
    _limit(limits)
    seccomp.install(threads=threads)
    _prove_containment()


def _inside(control: int, limits: dict[str, Any], threads: bool) -> NoReturn:
    """Be the interpreter; ends with exit status 70 if the sandbox was refused."""
    control = _arrange_descriptors(control)
    try:
        _close_the_door(limits, threads)
    except (OSError, ValueError, linux.SandboxSetupError) as error:
        _report(control, error)
        os._exit(70)
    os.write(control, b"ready\n")
    interpreter.serve(control)
    os._exit(0)


def _report(control: int, error: Exception) -> None:
    text = f"{type(error).__name__}: {error}; {_HINT}"
    os.write(control, b"refused " + text.encode("utf-8", "replace").replace(b"\n", b" ") + b"\n")


def _watch(child: int, life_line: int) -> int:
    """Wait for the interpreter's end or the service's; return the child's wait status."""
    handle = os.pidfd_open(child)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(life_line, select.POLLIN)
    if not any(descriptor == handle for descriptor, _ in poll.poll()):
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def main(control: int) -> int:
    """Build, start, watch; return the exit status: the interpreter's, 128 + signal, or 70 if the sandbox was refused."""
    config = json.loads(sys.stdin.readline())
    try:
        # RLIMIT_NPROC does not bind the kernel's user 0, which an unprivileged "root" of a container may still be.
        counted = os.geteuid() != 0
        uid = _enter_namespaces()
        linux.set_hostname("sandbox")
        view.enter(config["packages"], config["limits"]["scratch_mb"])
        _drop_privileges(uid)
        child = os.fork()
    except (OSError, linux.SandboxSetupError) as error:
        _report(control, error)
        return 70
    if child == 0:
        _inside(control, config["limits"], threads=counted or uid is not None)
    os.close(control)
    status = _watch(child, sys.stdin.fileno())
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

"""The process between the service and the interpreter: builds the sandbox, starts the interpreter in it, ends it.

Standard input carries one line of JSON and then stays open: when it closes, the interpreter is killed. If a layer
fails, the reason goes to the control descriptor and nothing is run. Layers: namespaces, a private read-only view, a
user without capabilities, no_new_privs, resource limits, the system-call filter, a self-test.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
from typing import Any, NoReturn

from . import interpreter, layers, linux, seccomp, view

_ENVIRONMENT = {
    "HOME": view.SCRATCH,
    "TMPDIR": view.SCRATCH,
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


def _limit(limits: dict[str, Any]) -> None:
    """Set hard limits; without CAP_SYS_RESOURCE they cannot be raised again."""
    mebi = 2**20
    memory = resource.getrlimit(resource.RLIMIT_AS)[1]
    if memory != resource.RLIM_INFINITY and memory < limits["memory_mb"] * mebi:
        raise linux.SandboxSetupError(
            f"the interpreter should have {limits['memory_mb']} MB of memory, but its parent's limit is "
            f"{memory // mebi}; "
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
    """Leave 0 (nothing), 1 and 2 (output pipe) and the control descriptor; close the rest.
    Returns the control descriptor."""
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    kept = 3
    if control != kept:
        os.dup2(control, kept)
    os.closerange(kept + 1, 4096)
    return kept


def _close_the_door(limits: dict[str, Any], threads: bool) -> None:
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
    layers.prove_containment()


def _inside(control: int, limits: dict[str, Any], threads: bool) -> NoReturn:
    """Become the interpreter; exit with status 70 if a layer fails."""
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
    text = f"{type(error).__name__}: {error}; {layers.HINT}"
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
    """Build, start, watch; return the interpreter's exit status, 128 + signal, or 70 if a layer failed."""
    config = json.loads(sys.stdin.readline())
    try:
        # RLIMIT_NPROC does not bind the kernel's user 0, which an unprivileged "root" of a container may still be.
        counted = os.geteuid() != 0
        uid = layers.enter_namespaces()
        linux.set_hostname("sandbox")
        view.enter(config["packages"], config["limits"]["scratch_mb"])
        layers.drop_privileges(uid)
        child = os.fork()
    except (OSError, linux.SandboxSetupError) as error:
        _report(control, error)
        return 70
    if child == 0:
        _inside(control, config["limits"], threads=counted or uid is not None)
    os.close(control)
    status = _watch(child, sys.stdin.fileno())
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

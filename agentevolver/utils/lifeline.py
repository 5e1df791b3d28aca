"""Run a command whose descendants all end with it, and with the process that started it.

`command(words)` runs with a pipe as standard input. When the pipe closes, or the command ends, every descendant is
killed. The exit code is the command's, or 128 and the signal's number. Linux only.
"""

from __future__ import annotations

# Runs by itself (`python -I -S lifeline.py WORD ...`), so only the standard library is imported.
import ctypes
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_KILL_S = 5.0
_POLL_S = 0.005
NOT_STARTED = 127


def command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-I", "-S", __file__, *words]


def main(words: list[str]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    # Orphaned descendants become children of this process, so `end_family` finds them.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    own = os.getpid()
    child = os.fork()
    if child == 0:
        # If this process alone is killed, the kernel kills the command.
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != own:
            os._exit(NOT_STARTED)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.setsid()
        try:
            os.execvp(words[0], words)
        except OSError as error:
            os.write(2, f"{words[0]}: {error.strerror}\n".encode())
        os._exit(NOT_STARTED)
    threading.Thread(target=_end_with_pipe, daemon=True).start()
    _, status = os.waitpid(child, 0)
    end_family()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end_with_pipe() -> None:
    while os.read(0, 4096):
        pass
    end_family()
    os._exit(128 + signal.SIGKILL)


def end_family() -> None:
    """Kill all descendants of this process; returns when none is left, or after 5 s."""
    deadline = time.monotonic() + _KILL_S
    # Repeated, because a dying process may still fork.
    while (family := _descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_POLL_S)


def _descendants(ancestor: int) -> list[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state in "ZXx":
            # Another thread could take the status of the child that `main` waits for.
            if int(parent) == ancestor and threading.current_thread() is threading.main_thread():
                _reap(int(name))
            continue
        children[int(parent)].append(int(name))
    found, look = [], [ancestor]
    while look:
        below = children.get(look.pop(), [])
        found += below
        look += below
    return found


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

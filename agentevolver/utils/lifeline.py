"""A command whose whole family of processes ends with it, and with whoever started it.

`command(words)` is run with a pipe as its standard input. When that closes, because who started it wants it ended or
has died, every process that the command has started is killed, wherever it went: this one adopts what its own parents
leave. The same happens when the command itself ends. It exits with the command's code, or 128 and the signal's number.

Runs by itself, without the packages around it: `python -I -S lifeline.py WORD ...`. Linux only.
"""

from __future__ import annotations

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
    """Return the words with which a command is run on a lifeline."""
    return [sys.executable, "-I", "-S", __file__, *words]


def main(words: list[str]) -> int:
    """Run a command; returns its exit code."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    own = os.getpid()
    child = os.fork()
    if child == 0:
        # Should this process be killed by itself, the command goes too.
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
    """Kill all that this process has started, and what that has started; returns when none is left, or after 5 s."""
    deadline = time.monotonic() + _KILL_S
    while (family := _descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_POLL_S)


def _descendants(ancestor: int) -> list[int]:
    """Return the running processes below one; zombies that it has yet to reap are reaped."""
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

"""A replacement for the `python` executable that asks the fork server for its process. Standard library only, for
speed.

Other processes, or all if the fork server is unreachable, run the real Python.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

TYPE_CHECKING = False  # as type checkers take it, without importing `typing`
if TYPE_CHECKING:
    from typing import TextIO

FLAGS = ("-B", "-E", "-s", "-S", "-I", "-u", "-q", "-O")
FLAGS_WITH_VALUE = ("-X", "-W")
RAY_WORKER = os.path.join("ray", "_private", "workers", "default_worker.py")
SPAWNED = "--multiprocessing-fork"
OURS = "agentevolver."
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def without_flags(arguments: list[str]) -> list[str]:
    """Return the arguments from the script, `-c` or `-m` on."""
    rest = list(arguments)
    while rest and (rest[0] in FLAGS or rest[0].startswith(FLAGS_WITH_VALUE)):
        rest = rest[2:] if rest[0] in FLAGS_WITH_VALUE else rest[1:]
    return rest


def uses_preloaded(arguments: list[str]) -> bool:
    """Whether a process with these arguments (without flags) uses the preloaded modules."""
    if not arguments:
        return False
    if arguments[0] == "-m":
        return len(arguments) > 1 and arguments[1].startswith(OURS)
    return arguments[0].endswith(RAY_WORKER) or (arguments[0] == "-c" and SPAWNED in arguments)


def inherited_files() -> list[int]:
    """Return the open file descriptors that a child would inherit."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) <= 2 or os.get_inheritable(int(name)):
                found.append(int(name))
        except OSError:  # the one that listed the folder
            continue
    return sorted(found)


def ask(path: str, arguments: list[str]) -> socket.socket:
    """Request a process and return the connection.

    The server sends the process id and later the status, or first the socket of another fork server.
    """
    files = inherited_files()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    wanted = {"argv": arguments, "env": dict(os.environ), "cwd": os.getcwd(), "nice": os.nice(0), "files": files}
    text = json.dumps(wanted).encode()
    socket.send_fds(connection, [len(text).to_bytes(8, "big")], files)
    connection.sendall(text)
    return connection


def attend(pid: int, replies: TextIO) -> int:
    """Forward signals until the process ends. Return its status as `os.waitpid` does, or SIGKILL if the server is
    lost."""

    def forward(number: int, _: object) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return

    for number in FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    return int(replies.readline() or signal.SIGKILL)


def main() -> None:
    real, path, *arguments = sys.argv[1:]
    rest = without_flags(arguments)
    connection = None
    first = ""
    if uses_preloaded(rest):
        # Blocked until the process that receives them is known.
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            while not first or first.startswith("/"):
                connection = ask(first or path, rest)
                replies = connection.makefile("r")
                first = replies.readline().strip()
                if not first:
                    raise ConnectionResetError("the fork server ended, and with it every process that it forked")
        except OSError:
            connection = None
    if connection is None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        os.execv(real, [real, *arguments])
    status = attend(int(first), replies)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) in FORWARDED:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()

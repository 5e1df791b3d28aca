"""Fork server with AppWorld imported: a worker starts in 0.2 s instead of 5 to 10 s.

It runs no agent's code. The first line of a connection is `lease` (keeps the server alive), `stop`, or a request for a
worker, which is forked and gets the connection. When the client closes, the worker's process group is killed; the
server closes its end once the worker is reaped. Without connections for `--grace` seconds it ends. It is
single-threaded, because it forks.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import logging
import os
import select
import signal
import socket
import time
import traceback
from dataclasses import dataclass, field

from .channel import Channel

log = logging.getLogger("appworld_worker")

MAX_HELLO_BYTES = 4096
_PR_SET_PDEATHSIG = 1


@dataclass
class Connection:
    """One accepted client: its socket, what it has sent so far, and the process that serves it."""

    sock: socket.socket
    received: bytearray = field(default_factory=bytearray)
    pid: int | None = None


class AppWorldForkServer:
    def __init__(self, path: str, grace_s: float) -> None:
        self._path = path
        self._grace_s = grace_s
        self._connections: dict[int, Connection] = {}
        self._stopping = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._listener.bind(path)
        self._listener.listen(4096)
        self._listener.setblocking(False)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)

    def run(self) -> None:
        """Serve until told to stop or idle for the grace period; then kill the workers and remove the socket."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_stopping", True))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        idle_since = time.monotonic()
        while not self._stopping:
            for fd, event in self._poll.poll(1000.0 * min(self._grace_s, 5.0)):
                self._handle(fd, event)
            if self._connections:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > self._grace_s:
                break
        self._shut_down()

    def _handle(self, fd: int, event: int) -> None:
        if fd == self._wake_read:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
            self._reap()
        elif fd == self._listener.fileno():
            self._accept()
        elif (connection := self._connections.get(fd)) is None:
            return  # dropped earlier in the same round
        elif connection.pid is None and event & select.POLLIN:
            self._read_hello(connection)
        elif event & (select.POLLHUP | select.POLLRDHUP | select.POLLERR | select.POLLNVAL):
            self._hang_up(connection)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            self._connections[sock.fileno()] = Connection(sock)
            self._poll.register(sock, select.POLLIN | select.POLLRDHUP)

    def _read_hello(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(MAX_HELLO_BYTES)
        except (BlockingIOError, ConnectionResetError):
            data = b""
        connection.received += data
        if not data or len(connection.received) > MAX_HELLO_BYTES:
            self._drop(connection)
            return
        line, newline, rest = connection.received.partition(b"\n")
        if not newline:
            return
        try:
            role = json.loads(line)["role"]
        except (ValueError, KeyError, TypeError):
            log.warning("a client sent a first line that is no role: %.100r", line)
            self._drop(connection)
            return
        self._poll.modify(connection.sock, select.POLLRDHUP)
        if role == "stop":
            self._stopping = True
        elif role == "worker":
            self._fork(connection, bytes(rest))
        elif role == "lease":
            connection.received.clear()
        else:
            self._drop(connection)

    def _fork(self, connection: Connection, rest: bytes) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            connection.pid = pid
            return
        code = 1
        try:
            self._become_worker(connection, parent)
            from .session import serve

            serve(Channel(connection.sock, rest))
            code = 0
        except (
            BaseException
        ):  # whatever an agent's code made of this process, it must not return into the server's loop
            traceback.print_exc()
        finally:
            os._exit(code)

    def _become_worker(self, connection: Connection, parent: int) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            raise ProcessLookupError("the fork server ended while it forked")
        for other in self._connections.values():
            if other is not connection:
                other.sock.close()
        self._listener.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        connection.sock.setblocking(True)

    def _hang_up(self, connection: Connection) -> None:
        if connection.pid is None:
            self._drop(connection)
            return
        self._poll.unregister(connection.sock)
        _kill_group(connection.pid)

    def _drop(self, connection: Connection) -> None:
        fd = connection.sock.fileno()
        with contextlib.suppress(KeyError):
            self._poll.unregister(fd)
        self._connections.pop(fd, None)
        connection.sock.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
                log.warning("worker %d was ended by signal %d", pid, os.WTERMSIG(status))
            _kill_group(pid)
            for connection in [c for c in self._connections.values() if c.pid == pid]:
                self._drop(connection)

    def _shut_down(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._listener.close()
        for connection in list(self._connections.values()):
            if connection.pid is not None:
                _kill_group(connection.pid)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(connection.pid, 0)
            self._drop(connection)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _detach() -> None:
    """Continue in a forked child, which survives when the starter's child processes are ended."""
    if os.fork():
        os._exit(0)


def main(argv: list[str]) -> int:
    """Warm up, report over `--ready-fd`, serve. Returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--ready-fd", type=int, required=True)
    parser.add_argument("--grace", type=float, default=10.0)
    arguments = parser.parse_args(argv)
    _detach()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line for each API call of an agent
    try:
        from .session import warm_up

        version = warm_up()
        server = AppWorldForkServer(arguments.socket, arguments.grace)
        report = {"ok": True, "pid": os.getpid(), "version": version}
    except Exception as error:  # whatever keeps AppWorld from starting is for the person who waits at the other end
        traceback.print_exc()
        os.write(arguments.ready_fd, json.dumps({"ok": False, "error": f"{type(error).__name__}: {error}"}).encode())
        return 1
    gc.collect()
    gc.freeze()
    os.write(arguments.ready_fd, json.dumps(report).encode())
    os.close(arguments.ready_fd)
    server.run()
    return 0

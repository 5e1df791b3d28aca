"""Fork server: a single-threaded process that has imported an environment and forks a worker per isolated instance.

It talks to its host over one socket with a JSON line per message: `spawn` and `kill` in, `ready` or `failed` out. When
the socket closes, it kills every worker with all descendants, and ends.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
from collections.abc import Iterator

from agentevolver.utils.processes import die_with_parent, reseed
from env_service.base import BaseEnv
from env_service.contract import shorten
from env_service.hosting.processes import adopt_orphans, be_first_to_go, children, kill_group, limit_memory, silence
from env_service.hosting.wire import Address, connect, pack, read_line, unpack
from env_service.hosting.worker import InstanceHost, serve_isolated
from env_service.registry import RegistryError, load

DIAL_TIMEOUT_S = 20.0


class ForkServer:
    def __init__(self, control: socket.socket, env_class: type[BaseEnv], memory_mb: int, max_reply_bytes: int) -> None:
        self._control = control
        self._env_class = env_class
        self._memory_mb = memory_mb
        self._max_reply_bytes = max_reply_bytes
        self._workers: dict[str, int] = {}
        self._buffer = b""
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def run(self) -> None:
        """Serve requests until the host closes the socket."""
        try:
            while True:
                readable, _, _ = select.select([self._control.fileno(), self._wake], [], [])
                if self._wake in readable:
                    self._drain_wakeups()
                    self._reap()
                if self._control.fileno() in readable and not self._take_requests():
                    return
        finally:
            for pid in self._workers.values():
                kill_group(pid)
            self._kill_orphans(spare=set())

    def _take_requests(self) -> bool:
        data = self._control.recv(1 << 20)
        if not data:
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            request = unpack(line)
            for worker, secret in request.get("spawn", ()):
                self._fork(Address(*request["address"]), worker, secret)
            for worker in request.get("kill", ()):
                if worker in self._workers:
                    kill_group(self._workers[worker])
        return True

    def _fork(self, address: Address, worker: str, secret: str) -> None:
        parent = os.getpid()
        try:
            # A fork takes milliseconds and shares the memory of the imported code.
            pid = os.fork()
        except OSError:  # no memory or no process ids left: the service notices the missing worker and retries
            return
        if pid:
            self._workers[worker] = pid
            return
        try:
            self._become_worker(parent, address, worker, secret)
        finally:
            os._exit(1)  # whatever happens, a child must never return into the fork server's loop

    def _become_worker(self, parent: int, address: Address, worker: str, secret: str) -> None:
        os.setsid()
        # If the fork server is killed, the kernel ends its workers.
        die_with_parent(parent)
        adopt_orphans()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        os.close(self._wake)
        be_first_to_go()
        reseed()
        sock = connect(address, worker, secret, os.getpid(), DIAL_TIMEOUT_S)
        limit_memory(self._memory_mb)
        serve_isolated(sock, InstanceHost(self._env_class, self._max_reply_bytes))

    def _drain_wakeups(self) -> None:
        try:
            while os.read(self._wake, 4096):
                pass
        except BlockingIOError:
            return

    def _reap(self) -> None:
        # Kill what an ended worker left: first its group, then the daemons that this process inherited.
        names = {pid: worker for worker, pid in self._workers.items()}
        for pid in _ended():
            kill_group(pid)
            os.waitpid(pid, 0)
            self._workers.pop(names.get(pid, ""), None)
        self._kill_orphans(spare=set(self._workers.values()))

    def _kill_orphans(self, spare: set[int]) -> None:
        for pid in children() - spare:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _ended() -> Iterator[int]:
    while True:
        try:
            # WNOWAIT: the zombie stays unreaped, so its process id cannot be reused before its group is killed.
            status = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if status is None:
            return
        yield status.si_pid


def main(descriptor: int) -> None:
    """Run a fork server whose control socket is `descriptor`; the first line there is the plan."""
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    silence()
    first = read_line(control)
    if not first:
        return
    plan = unpack(first)
    try:
        env_class = load(plan["module_class"])
    except RegistryError as error:
        control.sendall(pack({"failed": str(error)}) + b"\n")
        return
    except BaseException as error:  # importing runs foreign code, which may raise anything
        control.sendall(pack({"failed": f"importing {plan['module_class']} failed: {shorten(error)}"}) + b"\n")
        return
    adopt_orphans()
    gc.collect()
    # A collection in a worker would write to every page shared with this process, and so copy it.
    gc.freeze()
    control.sendall(pack({"ready": os.getpid()}) + b"\n")
    ForkServer(control, env_class, plan["memory_mb"], plan["max_reply_bytes"]).run()

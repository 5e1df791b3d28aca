"""Host: a Ray actor that holds instances of one environment class, on any node of the cluster.

For a shared environment the actor's own process holds the instances. For an isolated one it keeps a fork server, which
forks a process for each instance. No actor, fork server or worker outlives the service.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import Any, NamedTuple

from agentevolver.utils.secrets import forget, secret
from env_service.hosting.processes import limit_memory, secret_variables, silence, without_secrets
from env_service.hosting.wire import Address, connect, pack, read_line, unpack
from env_service.hosting.worker import InstanceHost, serve_shared
from env_service.registry import load

FORK_SERVER_START_S = 120.0
FORK_SERVER_STOP_S = 10.0
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from env_service.hosting.forkserver import main; "
    "main(int(sys.argv[2]))"
)


class HostSpec(NamedTuple):
    """Plain data that travels to other nodes."""

    env_type: str
    module_class: str
    threads: int = 32
    memory_mb: int | None = None
    shared_memory_mb: int = 4096
    max_reply_bytes: int = 16 * 1024 * 1024
    pass_env: tuple[str, ...] = ()  # secret variables that environments may see
    secrets: str | None = None  # folder with the files of the secrets in `pass_env`


class Description(NamedTuple):
    """An environment class's declaration about its hosting."""

    isolation: str
    call_timeout_s: float


class Host:
    """The actor's class. All methods are quick; the work happens in threads or processes."""

    def __init__(self, spec: HostSpec) -> None:
        self.spec = spec
        self.env_class = load(spec.module_class)
        self._control: socket.socket | None = None
        self._fork_server: subprocess.Popen[bytes] | None = None

    def describe(self) -> Description:
        return Description(self.env_class.isolation, float(self.env_class.call_timeout_s))

    def serve(self, address: Address, worker: str, secret: str) -> int:
        """Dial the service and hold shared instances; returns the process id. Raises OSError if the service does not
        listen."""
        sock = connect(address, worker, secret, os.getpid())
        silence()
        limit_memory(self.spec.shared_memory_mb)
        instance_host = InstanceHost(self.env_class, self.spec.max_reply_bytes)
        arguments = (sock, instance_host, self.spec.threads, _leave)
        threading.Thread(target=serve_shared, args=arguments, name="instances", daemon=True).start()
        return os.getpid()

    def start_fork_server(self) -> int:
        """Start the fork server and return its process id; raises RuntimeError if it cannot import the environment."""
        self._control, theirs = socket.socketpair()
        path = [os.getcwd() if entry == "" else entry for entry in sys.path]
        command = [sys.executable, "-c", _BOOT, pack(path).decode(), str(theirs.fileno())]
        environ = without_secrets(os.environ, self.spec.pass_env)
        with theirs:
            self._fork_server = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), env=environ, stdin=subprocess.DEVNULL, start_new_session=True
            )
        memory_mb = self.env_class.memory_mb if self.spec.memory_mb is None else self.spec.memory_mb
        plan = {
            "module_class": self.spec.module_class,
            "memory_mb": memory_mb,
            "max_reply_bytes": self.spec.max_reply_bytes,
        }
        self._control.settimeout(FORK_SERVER_START_S)
        self._control.sendall(pack(plan) + b"\n")
        answer = read_line(self._control)
        self._control.settimeout(None)
        report = (
            unpack(answer)
            if answer
            else {"failed": f"the process that imports {self.spec.module_class} ended during the import"}
        )
        if "failed" in report:
            self.stop_fork_server()
            raise RuntimeError(str(report["failed"]))
        return int(report["ready"])

    def spawn(self, address: Address, workers: list[tuple[str, str]]) -> None:
        """Fork a process for each (worker, secret), which dials the service. Raises RuntimeError without a fork
        server."""
        self._tell({"spawn": workers, "address": list(address)})

    def reap(self, workers: list[str]) -> None:
        """Kill workers that have not ended. Raises RuntimeError without a fork server."""
        self._tell({"kill": workers})

    def stop_fork_server(self) -> None:
        if self._control is not None:
            # The fork server sees the closed socket, kills its workers and ends; the same happens when this process
            # ends.
            self._control.close()
            self._control = None
        if self._fork_server is not None:
            self._fork_server.wait(FORK_SERVER_STOP_S)
            self._fork_server = None

    def _tell(self, request: dict[str, Any]) -> None:
        if self._control is None:
            raise RuntimeError("start_fork_server() comes first")
        try:
            self._control.sendall(pack(request) + b"\n")
        except OSError as error:
            raise RuntimeError(f"the fork server of {self.spec.env_type!r} is gone: {error}") from error


class HostActor(Host):
    """A host in its own process."""

    def __init__(self, spec: HostSpec) -> None:
        # Environments must not see secrets: forget them before the class is imported.
        # Ray's own variables stay: Ray reads them later.
        forget(name for name in secret_variables(os.environ, spec.pass_env) if not name.startswith("RAY_"))
        for name in spec.pass_env:
            if value := secret(name, spec.secrets):
                os.environ[name] = value
        super().__init__(spec)


def _leave() -> None:
    os._exit(0)  # not `sys.exit`: exit handlers could wait for hung threads

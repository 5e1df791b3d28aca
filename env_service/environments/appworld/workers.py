"""Worker processes of the AppWorld venv: start, ask with a time limit, end.

All processes of this user share one fork server for an installation. The first one starts it; it ends some seconds
after the last has gone.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import select
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from env_service.environments.appworld.installation import Installation, runtime_folder, sweep
from env_service.environments.appworld.worker.channel import Channel, ChannelClosed

log = logging.getLogger(__name__)

START_TIMEOUT_S = 90.0
REPLY_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 10.0
GRACE_S = 10.0
_WORKER_FOLDER = Path(__file__).resolve().parent / "worker"
_SANDBOX_FOLDER = _WORKER_FOLDER.parents[1] / "python_tool" / "sandbox"
# What the worker needs of our environment. Everything else stays out of reach of the agent's code: keys and tokens
# above all.
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ")


class WorkerError(RuntimeError):
    """AppWorld or the process that runs it has failed; the episode cannot go on."""


class WorkerDied(WorkerError):
    """The worker process has ended."""


class WorkerTimeout(WorkerError):
    """The worker did not answer in time and was killed."""


class _ServerGone(Exception):
    pass


class ForkServerClient:
    _shared: ClassVar[dict[Installation, ForkServerClient]] = {}
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._lock = threading.Lock()
        self._lease: socket.socket | None = None
        base = runtime_folder() / _fingerprint(installation)
        self.socket_path = base.with_suffix(".sock")
        self.log_path = base.with_suffix(".log")
        self._lock_path = base.with_suffix(".lock")

    @classmethod
    def of(cls, installation: Installation) -> ForkServerClient:
        with cls._shared_lock:
            if installation not in cls._shared:
                cls._shared[installation] = cls(installation)
            return cls._shared[installation]

    def connect(self) -> socket.socket:
        """Return a connection to a new worker, starting the server if needed; raises WorkerError."""
        for _ in range(3):
            with self._lock:
                try:
                    self._hold_lease()
                    return _dial(self.socket_path, "worker")
                except _ServerGone:
                    self._drop_lease()
        raise WorkerError(
            f"the AppWorld fork server at {self.socket_path} ended three times while connecting; see {self.log_path}"
        )

    def stop(self) -> None:
        with self._lock:
            self._drop_lease()
            try:
                sock = _dial(self.socket_path, "stop")
            except _ServerGone:
                return
            with sock:
                _wait_for_end(sock, CLOSE_TIMEOUT_S)

    def _drop_lease(self) -> None:
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    def _hold_lease(self) -> None:
        if self._lease is not None and not _has_ended(self._lease):
            return
        self._drop_lease()
        with self._lock_path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._lease = _dial(self.socket_path, "lease")
            except _ServerGone:
                self._start()
                self._lease = _dial(self.socket_path, "lease")

    def _start(self) -> None:
        started = time.monotonic()
        sweep()
        read_end, write_end = os.pipe()
        command = [
            str(self._installation.python),
            "-I",
            str(_WORKER_FOLDER / "start.py"),
            "--socket",
            str(self.socket_path),
        ]
        with self.log_path.open("wb") as log_file, open(read_end, "rb", closefd=True) as ready:
            try:
                process = subprocess.Popen(
                    [*command, "--ready-fd", str(write_end), "--grace", str(GRACE_S)],
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=log_file,
                    cwd=self.socket_path.parent,
                    env=_environment(self._installation, self.socket_path.parent),
                    pass_fds=(write_end,),
                    start_new_session=True,
                )
            finally:
                os.close(write_end)
            process.wait(START_TIMEOUT_S)
            report = _read_report(ready.fileno(), started + START_TIMEOUT_S)
        if not report.get("ok"):
            detail = (
                report.get("error") or self.log_path.read_text(errors="replace")[-800:].strip() or "it said nothing"
            )
            raise WorkerError(f"AppWorld did not start ({detail}); see {self.log_path}")
        log.info(
            "AppWorld %s ready after %.1f s (process %s)", report["version"], time.monotonic() - started, report["pid"]
        )


class AppWorldWorker:
    """One process of the AppWorld venv. Use as a context manager, or call `close`. Not thread-safe."""

    def __init__(self, installation: Installation) -> None:
        """Fork a worker; raises WorkerError if AppWorld does not start."""
        sock = ForkServerClient.of(installation).connect()
        self._channel = Channel(sock)
        self._is_open = True
        self.pid = 0
        self.pid = int(self._reply("start", REPLY_TIMEOUT_S)["pid"])

    def __enter__(self) -> AppWorldWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._is_open

    def ask(self, operation: str, timeout_s: float = REPLY_TIMEOUT_S, **fields: Any) -> Any:
        """Return the result of an operation of `worker/session.py`.

        Raises ValueError for a wrong request, WorkerTimeout (the worker is killed), WorkerDied, WorkerError.
        """
        if not self._is_open:
            raise WorkerDied("the AppWorld worker of this episode has ended")
        try:
            self._channel.send({"op": operation, **fields})
        except ChannelClosed as error:
            self.close()
            raise WorkerDied(f"the AppWorld worker {self.pid} ended before `{operation}`") from error
        return self._reply(operation, timeout_s)

    def _reply(self, operation: str, timeout_s: float) -> Any:
        try:
            reply = self._channel.receive(timeout_s)
        except TimeoutError as error:
            self.close()
            raise WorkerTimeout(
                f"the AppWorld worker did not answer `{operation}` within {timeout_s:g} s and was killed"
            ) from error
        except (ChannelClosed, ValueError) as error:
            self.close()
            raise WorkerDied(
                f"the AppWorld worker ended during `{operation}` ({error}); was it killed, or out of memory?"
            ) from error
        if reply["ok"]:
            return reply["result"]
        if reply["kind"] == "value":
            raise ValueError(reply["error"])
        raise WorkerError(f"AppWorld failed in `{operation}`: {reply['error']}")

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        with self._channel.sock as sock:
            if not _wait_for_end(sock, CLOSE_TIMEOUT_S):
                log.error(
                    "the fork server did not report the end of AppWorld worker %s within %g s",
                    self.pid,
                    CLOSE_TIMEOUT_S,
                )


def ask_once(installation: Installation, operation: str, timeout_s: float = REPLY_TIMEOUT_S, **fields: Any) -> Any:
    """Ask a new worker one question, then end it; raises as `AppWorldWorker.ask`."""
    with AppWorldWorker(installation) as worker:
        return worker.ask(operation, timeout_s, **fields)


def _fingerprint(installation: Installation) -> str:
    """Hash what clients of one server must share: interpreter, data and the worker's code."""
    digest = hashlib.sha256(f"{installation.python}\0{installation.root}".encode())
    for source in (*sorted(_WORKER_FOLDER.glob("*.py")), *sorted(_SANDBOX_FOLDER.glob("*.py"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _environment(installation: Installation, scratch: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return kept | {
        "APPWORLD_ROOT": str(installation.root),
        "APPWORLD_CACHE": str(scratch),
        "HOME": str(scratch),
        "OMP_NUM_THREADS": "1",
        # The package loads any .env it finds above itself, and that may be the one with our keys.
        "PYTHON_DOTENV_DISABLED": "1",
    }


def _dial(path: Path, role: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(REPLY_TIMEOUT_S)
        sock.connect(str(path))
        sock.sendall(json.dumps({"role": role}).encode() + b"\n")
    except (FileNotFoundError, ConnectionError) as error:
        sock.close()
        raise _ServerGone(str(error)) from error
    return sock


def _is_readable(fd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000.0 * timeout_s))


def _has_ended(sock: socket.socket) -> bool:
    return _is_readable(sock.fileno(), 0.0)


def _wait_for_end(sock: socket.socket, timeout_s: float) -> bool:
    """Shut down our direction and wait for the peer's end; False if it does not come in time."""
    deadline = time.monotonic() + timeout_s
    try:
        sock.shutdown(socket.SHUT_WR)
        while (remaining := deadline - time.monotonic()) > 0:
            sock.settimeout(remaining)
            if not sock.recv(65536):
                return True
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


def _read_report(fd: int, deadline: float) -> dict[str, Any]:
    """Return the fork server's start report; empty if it ended or stayed silent."""
    data = b""
    while (remaining := deadline - time.monotonic()) > 0:
        piece = os.read(fd, 65536) if _is_readable(fd, remaining) else b""
        if not piece:
            break
        data += piece
    try:
        report = json.loads(data)
    except ValueError:
        return {}
    return report if isinstance(report, dict) else {}

"""The service's side of the sandbox: start an interpreter ahead of time, run code in it, end it.

A run ends soon after the wall-clock limit, whatever the code does. Nothing from the interpreter is trusted. No process
outlives `close` or the service. `SandboxUnavailable` is an infrastructure failure; the code's own end is a `RunResult`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from .interpreter import HEADER


@dataclass(frozen=True)
class SandboxLimits:
    """One interpreter. The constructor returns at once; the sandbox is built meanwhile."""

    """Bounds of one interpreter; MB means 2**20 bytes."""

    wall_s: float = 10.0
    """Seconds of wall-clock time for one piece of code; the host ends the interpreter after them."""
    cpu_s: int = 120
    """Seconds of processor time over the interpreter's whole life (RLIMIT_CPU)."""
    memory_mb: int = 1024
    """Address space of the interpreter, its only process (RLIMIT_AS)."""
    scratch_mb: int = 32
    """Size of the scratch folder, a tmpfs of its own."""
    file_mb: int = 16
    """Size of one file (RLIMIT_FSIZE)."""
    open_files: int = 64
    """Open file descriptors (RLIMIT_NOFILE)."""
    threads: int = 32
    """Threads; further processes are refused altogether."""
    output_bytes: int = 4096
    """Bytes of output (UTF-8) that are kept of one piece of code: the first quarter and the last three quarters of
    them."""
    flood_mb: int = 64
    """Output of one piece of code after which the interpreter is ended."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"limit `{field.name}` must be positive, got {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return the limits as plain data, for the launcher and for `get_info`."""
        return asdict(self)


Status = Literal["ok", "error", "timeout", "output_limit", "died"]

MAX_CODE_BYTES = 256 * 1024
_REPORTED: dict[str, Status] = {"ok": "ok", "error": "error"}
"""What the interpreter itself may say of a run; the host finds out the rest."""
_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 5.0
_STATUS_BYTES = 256
_LATE_OUTPUT_BYTES = 2**20
_BOOT = "import sys; sys.path.append(sys.argv[1]); from sandbox.launcher import main; sys.exit(main(int(sys.argv[2])))"


class SandboxUnavailable(RuntimeError):
    """The sandbox cannot be built here; the message names the layer and what to do. No code was run."""


@dataclass(frozen=True)
class RunResult:
    status: Status
    output: str
    """What it printed, cut in the middle."""
    detail: str
    """The exception's type for "error", the cause for "died", else empty."""
    wall_s: float

    @property
    def alive(self) -> bool:
        return self.status in ("ok", "error")


class Clip:
    """Keeps the first quarter and the last three quarters of `limit` bytes of a stream, and counts the rest."""

    def __init__(self, limit: int) -> None:
        self._head_size = limit // 4
        self._tail_size = limit - self._head_size
        self._head = b""
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        missing = self._head_size - len(self._head)
        self._head += data[:missing]
        self._tail += data[missing:]
        del self._tail[: max(0, len(self._tail) - self._tail_size)]

    def text(self) -> str:
        left_out = self.total - len(self._head) - len(self._tail)
        if not left_out:
            return (self._head + bytes(self._tail)).decode("utf-8", "replace")
        head, tail = self._head.decode("utf-8", "ignore"), bytes(self._tail).decode("utf-8", "ignore")
        return f"{head}\n... {left_out} bytes of output left out ...\n{tail}"


class Sandbox:
    def __init__(self, limits: SandboxLimits, packages: Sequence[str] = ()) -> None:
        """Start building in the background. `packages`: host paths of importable package folders or modules."""
        self.limits = limits
        self.packages = tuple(packages)
        self._ready = False
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        self._output, output_end = os.pipe()
        os.set_blocking(self._output, False)
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-s",
                    "-S",
                    "-X",
                    "utf8",
                    "-c",
                    _BOOT,
                    str(Path(__file__).resolve().parents[1]),
                    str(theirs.fileno()),
                ],
                stdin=subprocess.PIPE,
                stdout=output_end,
                stderr=output_end,
                pass_fds=(theirs.fileno(),),
                # `-I` would leave out the seed of hashes, without which a set has another order in each process, and a
                # task made of a seed is another task.
                env={
                    "PYTHONHASHSEED": "0",
                    **{key: os.environ[key] for key in ("LD_LIBRARY_PATH",) if key in os.environ},
                },
                cwd="/",
                start_new_session=True,
            )
        finally:
            theirs.close()
            os.close(output_end)
        self._send_config()

    def _send_config(self) -> None:
        config = {"limits": self.limits.to_dict(), "packages": list(self.packages)}
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a launcher that died already is reported by `wait_ready`
            self._process.stdin.write(json.dumps(config).encode() + b"\n")
            self._process.stdin.flush()

    @property
    def launcher_pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until the sandbox has passed its self-test; raise SandboxUnavailable."""
        if self._ready:
            return
        said = Clip(self.limits.output_bytes)
        line = self._status_line(time.monotonic() + _START_TIMEOUT_S, said)
        if line == "ready":
            self._ready = True
            return
        self._drain(said, _LATE_OUTPUT_BYTES)
        self.close()
        if line is None:
            raise SandboxUnavailable(f"the sandbox did not start within {_START_TIMEOUT_S:g} s")
        reason = (
            line.removeprefix("refused ")
            or f"the launcher ended with status {self._process.returncode}: {said.text().strip()}"
        )
        raise SandboxUnavailable(f"refusing to run code without a sandbox: {reason}")

    def is_alive(self) -> bool:
        """Whether the interpreter can take code: neither closed nor killed from outside."""
        return self._control.fileno() != -1 and self._process.poll() is None and not self._control_closed()

    def _control_closed(self) -> bool:
        try:
            return not self._control.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def run(self, code: str) -> RunResult:
        """Run code; after any status but "ok" and "error" the interpreter is gone. Raises SandboxUnavailable, or
        ValueError for code longer than MAX_CODE_BYTES."""
        data = code.encode("utf-8", "surrogatepass")
        if len(data) > MAX_CODE_BYTES:
            raise ValueError(f"code of {len(data)} bytes is longer than the {MAX_CODE_BYTES} allowed")
        if self._control.fileno() == -1:
            raise RuntimeError("this sandbox is closed; start another one")
        self.wait_ready()
        started = time.monotonic()
        output = Clip(self.limits.output_bytes)
        self._discard_stale_status()
        line: str | None = ""
        deadline = started + self.limits.wall_s
        with contextlib.suppress(OSError):  # an interpreter that is gone is "died", below
            self._send(len(data).to_bytes(HEADER, "little") + data, deadline)
            line = self._status_line(deadline, output)
        return self._result(line, output, started)

    def _send(self, data: bytes, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._control, select.POLLOUT)
        while data and (left := deadline - time.monotonic()) > 0:
            if poll.poll(left * 1000):
                data = data[self._control.send(data) :]

    def _result(self, line: str | None, output: Clip, started: float) -> RunResult:
        word, _, detail = (line or "").partition(" ")
        kind: Status = _REPORTED.get(word, "died")
        if output.total > self.limits.flood_mb * 2**20:
            kind = "output_limit"
        elif line is None:
            kind = "timeout"
        self._drain(output, _LATE_OUTPUT_BYTES)
        if kind not in ("ok", "error"):
            self.close()
            detail = self._cause_of_death() if kind == "died" else ""
        return RunResult(kind, output.text(), detail, time.monotonic() - started)

    def _cause_of_death(self) -> str:
        code = self._process.returncode
        number = code - 128 if code > 128 else -code
        if number > 0:
            return (
                f"signal {number} ({signal.Signals(number).name})"
                if number in set(signal.Signals)
                else f"signal {number}"
            )
        return f"exit status {code}"

    def _discard_stale_status(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            while self._control.recv(_STATUS_BYTES):
                pass

    def _status_line(self, deadline: float, output: Clip) -> str | None:
        """Return the next status line, "" if the interpreter is gone or breaks the protocol, None after the deadline or
        too much output."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._output, select.POLLIN)
        received = b""
        while (left := deadline - time.monotonic()) > 0:
            events = {descriptor for descriptor, _ in poll.poll(left * 1000)}
            if self._output in events and not self._drain(output, _LATE_OUTPUT_BYTES):
                poll.unregister(self._output)
            if output.total > self.limits.flood_mb * 2**20:
                return None
            if self._control.fileno() not in events:
                continue
            part = self._control.recv(4096)
            received += part
            if b"\n" in received:
                return received.split(b"\n", 1)[0].decode("utf-8", "replace")
            if not part or len(received) > 16 * _STATUS_BYTES:
                return ""
        return None

    def _drain(self, output: Clip, most: int) -> bool:
        """Read at most `most` bytes of output; return False if the pipe is closed."""
        while most > 0:
            try:
                part = os.read(self._output, 65536)
            except BlockingIOError:
                return True
            if not part:
                return False
            output.add(part)
            most -= len(part)
        return True

    def close(self) -> None:
        if self._control.fileno() == -1:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._control.close()
        os.close(self._output)

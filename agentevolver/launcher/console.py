"""The main job's output: byte for byte into a file and, as long as it takes them, onto the console.

Standard output and standard error stay apart on the console and share the file, in the order in which they arrive. A
thread of its own copies, so that a console which blocks (a paused terminal, a pager) holds up the job's output and not
the watching of the services. A console that is closed is given up; the file is written on.
"""

from __future__ import annotations

import logging
import os
import select
import selectors
import threading
from pathlib import Path
from types import TracebackType

from agentevolver.launcher.log_rotation import piece_of

logger = logging.getLogger(__name__)

_CHUNK = 65_536
CLOSE_WAIT_S = 3.0
SHOW_CURSOR = b"\x1b[?25h"


class Tee:
    """A context manager; `out` and `err` are the descriptors that a child writes to."""

    def __init__(self, log: Path, console_out: int, console_err: int) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._path = log
        self._log = log.open("ab", buffering=0)
        out_end, self.out = os.pipe()
        err_end, self.err = os.pipe()
        self._consoles: dict[int, int | None] = {out_end: console_out, err_end: console_err}
        self._terminal = console_out if os.isatty(console_out) else None
        self._muted = False
        self._thread = threading.Thread(target=self._copy, name="tee", daemon=True)

    def __enter__(self) -> Tee:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()
        # Ends at once, unless the console blocks or a process that is none of ours any more still holds a pipe.
        self._thread.join(CLOSE_WAIT_S)
        if self._terminal is not None:
            # A progress bar that was cut off has hidden the cursor.
            _write_all(self._terminal, SHOW_CURSOR)

    def mute(self) -> None:
        """Write to the file alone from now on: what a job says while it is being ended helps nobody at the console."""
        self._muted = True

    def detach(self) -> None:
        """Close this process's own ends, so that the copying ends with the last writer."""
        for descriptor in {self.out, self.err} - {-1}:
            os.close(descriptor)
        self.out = self.err = -1

    def _copy(self) -> None:
        # Whatever happens to its targets, the pipes are emptied: a full one would stop the job.
        log: int | None = self._log.fileno()
        with selectors.DefaultSelector() as pipes:
            for end in self._consoles:
                pipes.register(end, selectors.EVENT_READ)
            while pipes.get_map():
                for key, _ in pipes.select():
                    chunk = os.read(key.fd, _CHUNK)
                    if not chunk:
                        pipes.unregister(key.fd)
                        os.close(key.fd)
                        continue
                    if log is not None and (problem := _write_all(log, chunk)) is not None:
                        logger.error("%s is not written on: %s", self._path, problem.strerror)
                        log = None
                    self._show(key.fd, chunk)
        self._log.close()

    def _show(self, end: int, chunk: bytes) -> None:
        console = self._consoles[end]
        if console is not None and not self._muted and _write_all(console, chunk) is not None:
            self._consoles[end] = None


def _write_all(descriptor: int, data: bytes) -> OSError | None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # a terminal that something else made non-blocking
            select.select([], [descriptor], [])
        except OSError as problem:
            return problem
    return None


def keep_history(log: Path) -> None:
    """Set the log of an earlier launch aside, under the time it was last written."""
    if log.exists() and log.stat().st_size:
        log.rename(piece_of(log, log.stat().st_mtime))

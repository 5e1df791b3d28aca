"""Everything a run leaves behind: metrics.jsonl, trajectory files, its status, and whatever loggers verl was asked for.

Each record is on disk before the run goes on. Files of a step are written whole or not at all; metrics.jsonl has one
object a step, appended and flushed. A resumed run moves the metrics of the steps it repeats to
metrics.superseded.jsonl.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from numbers import Number
from pathlib import Path
from typing import Any, Protocol

from agentevolver.utils.files import append_jsonl, parse, whole, write_json

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
SUPERSEDED = "metrics.superseded.jsonl"


class Logger(Protocol):
    """What is used of verl's `Tracking`."""

    def log(self, data: dict[str, Any], step: int) -> None: ...

    def finish(self, exit_code: int = ...) -> None: ...


def plain_number(value: Any) -> float | int | None:
    """Return a metric as a Python number, or None for what is not a finite number."""
    item = getattr(value, "item", None)
    number = item() if callable(item) and getattr(value, "size", 1) in (1, ()) else value
    if isinstance(number, bool):
        return int(number)
    if not isinstance(number, Number) or isinstance(number, complex) or not math.isfinite(number):  # type: ignore[arg-type]
        return None
    return number  # type: ignore[return-value]


class RunLog:
    """Takes a step's metrics: to metrics.jsonl first, then to verl's loggers.

    Args:
        directory: the experiment's folder.
        backend: verl's `Tracking`.
        told: called when a step's metrics are on disk.
    """

    def __init__(self, directory: Path, backend: Logger, told: Callable[[], None] | None = None) -> None:
        self._path = directory / METRICS
        self._backend = backend
        self._told = told

    def log(self, data: dict[str, Any], step: int) -> None:
        """Append one object `{"step", "time", metric: number…}` and pass the numbers on."""
        numbers = {key: number for key, value in data.items() if (number := plain_number(value)) is not None}
        record = {"step": step, "time": round(time.time(), 3), **numbers}
        append_jsonl(self._path, record)
        self._backend.log(data=numbers, step=step)
        if self._told is not None:
            self._told()

    def finish(self, exit_code: int = 0) -> None:
        """Close verl's loggers."""
        self._backend.finish(exit_code=exit_code)


def supersede_metrics(directory: Path, last_kept_step: int) -> int:
    """Move the metrics after `last_kept_step` out of metrics.jsonl, for a run that repeats those steps; returns how
    many.

    One line is in memory at a time. Lines that are no record of a step (torn by a kill, or by a full disk) are moved
    too, and said.
    """
    path, aside = directory / METRICS, directory / SUPERSEDED
    repeated = broken = 0
    if not path.exists():
        return 0
    with path.open("rb") as lines:
        if all((step := _step_of(line)) is not None and step <= last_kept_step for line in lines):
            return 0
        lines.seek(0)
        with whole(path) as draft, draft.open("wb") as kept, aside.open("ab") as moved:
            for line in lines:
                step = _step_of(line)
                target = kept if step is not None and step <= last_kept_step else moved
                target.write(line.rstrip(b"\n") + b"\n")
                repeated += target is moved and step is not None
                broken += step is None
            moved.flush()
            os.fsync(moved.fileno())
    if broken:
        logger.warning("%d lines of %s are no record of a step; they were moved to %s", broken, path, aside.name)
    return repeated


def last_step(directory: Path) -> int | None:
    """Return the greatest step that metrics.jsonl holds, None if it holds none; broken lines are passed over."""
    try:
        with (directory / METRICS).open("rb") as lines:
            return max((step for line in lines if (step := _step_of(line)) is not None), default=None)
    except FileNotFoundError:
        return None


def _step_of(line: bytes) -> int | None:
    step = (parse(line) or {}).get("step")
    return step if isinstance(step, int) else None


class Status:
    """What the run is doing, in `status.json`, for whoever watches it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "status.json"
        self._lock = threading.Lock()
        self._last: dict[str, Any] = {}
        self._stuck: str | None = None

    def set(self, phase: str, **facts: Any) -> None:
        """Replace the status; `facts` are JSON-ready (step, total_steps, …)."""
        with self._lock:
            self._last = {"phase": phase, **facts}
            self._write()

    def note(self, stuck: str | None) -> None:
        """Say beside the phase why nothing goes on (`stuck`), or that it does."""
        with self._lock:
            self._stuck = stuck
            self._write()

    def _write(self) -> None:
        stuck = {} if self._stuck is None else {"stuck": self._stuck}
        write_json(
            self._path, {**({"phase": "starting"} | self._last), "time": round(time.time(), 3), **stuck}, durable=False
        )

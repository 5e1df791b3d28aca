"""Files of a run: metrics.jsonl, its status, whatever loggers verl was asked for, and how long step files are kept.

Each record is on disk before the run goes on; metrics.jsonl has one object a step, appended and flushed. A resumed run
moves the metrics of the steps it repeats to metrics.superseded.jsonl.

Folders of step files (trajectories, validation, samples) are bounded each by itself: the newest files stay as they are,
older ones are compressed, the oldest dropped. Metrics, checkpoints, the pool, task files and records of launches are
none of these: a resume or the page's curves need them. No resume needs a file that is dropped here.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentevolver.utils.files import COMPRESSED, append_jsonl, compress, parse, whole, write_json, written

if TYPE_CHECKING:
    from agentevolver.config.training import RetentionSettings

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
STATUS = "status.json"
SUPERSEDED = "metrics.superseded.jsonl"
SAMPLES = "samples"
FOLDERS = ("trajectories", "validation", SAMPLES)
_SUFFIX = ".jsonl"
# Compressed after one step at most: an experiment of an earlier release is caught up with over many steps.
AT_ONCE = 16
GB = 10**9


class Logger(Protocol):
    """Logger: what is used of verl's `Tracking`."""

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
    """Log of a run: takes a step's metrics to metrics.jsonl first, then to verl's loggers.

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
    """Move the metrics after `last_kept_step` out of metrics.jsonl,
    for a run that repeats those steps; returns how many.

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


def last_trained_step(directory: Path) -> int:
    """Return the greatest step that was trained by metrics.jsonl, 0 if none was. What an evaluation of a checkpoint
    writes, under that checkpoint's step, is none."""
    try:
        with (directory / METRICS).open("rb") as lines:
            trained = (record for line in lines if _is_of_training(record := parse(line) or {}))
            return max((step for record in trained if isinstance(step := record.get("step"), int)), default=0)
    except FileNotFoundError:
        return 0


def _is_of_training(record: dict[str, Any]) -> bool:
    # verl's loop puts the key into each step's record, its validation's metrics beside.
    return "training/global_step" in record or not any(name.startswith("val-") for name in record)


def _step_of(line: bytes) -> int | None:
    step = (parse(line) or {}).get("step")
    return step if isinstance(step, int) else None


def read_status(directory: Path) -> dict[str, Any]:
    """Return what a run says that it is doing (`Status`); nothing where it has not said anything."""
    try:
        return parse((directory / STATUS).read_bytes()) or {}
    except OSError:
        return {}


class Status:
    """Status of a run, what it is doing, in `status.json`, for whoever watches it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / STATUS
        self._lock = threading.Lock()
        self._last: dict[str, Any] = {}
        self._stuck: str | None = None
        self._warning: str | None = None

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

    def warn(self, warning: str | None) -> None:
        """Say beside the phase what somebody should do something about, or that there is nothing."""
        with self._lock:
            self._warning = warning
            self._write()

    def _write(self) -> None:
        beside = {"stuck": self._stuck, "warning": self._warning}
        told = {name: text for name, text in beside.items() if text is not None}
        write_json(
            self._path, {**({"phase": "starting"} | self._last), "time": round(time.time(), 3), **told}, durable=False
        )


logger = logging.getLogger(__name__)


class StepFolder:
    """The files of one folder in the order of their writing. It is listed once;
    a step costs the same after any number of steps.

    Args:
        folder: holds `step_<n>.jsonl`, and files of the same kind under other names.
        settings: how much is kept.
    """

    def __init__(self, folder: Path, settings: RetentionSettings) -> None:
        self.folder = folder
        self.total = 0
        self._settings = settings
        bounds = (settings.folder_gb, settings.samples_gb if folder.name == SAMPLES else None)
        self._limit_gb = min((bound for bound in bounds if bound is not None), default=None)
        self._step: int | None = None
        # Both by the name that a file has before it is compressed.
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._plain: OrderedDict[str, None] = OrderedDict()

    def tidy(self, step: int) -> None:
        """Take the files of the steps up to `step` into account, then compress and drop what is beyond the bounds."""
        # The last step again: its validation comes after it.
        if self._step is None:
            for draft in self.folder.glob(f".*{_SUFFIX}*"):  # of a run that was killed while it wrote
                draft.unlink()
            found = {path: path.stat().st_mtime_ns for path in self.folder.glob("[!.]*")}
            names = (
                path.name.removesuffix(COMPRESSED) for path in sorted(found, key=lambda path: (found[path], path.name))
            )
        else:
            names = (f"step_{number}{_SUFFIX}" for number in range(self._step, step + 1))
        for name in names:
            if name.endswith(_SUFFIX):
                self._take(name)
        self._step = step
        for name in list(self._plain)[: self._to_compress()]:
            del self._plain[name]
            self._note(name, compress(self.folder / name))
        while self._limit_gb is not None and self.total > self._limit_gb * GB and len(self._sizes) > 1:
            self._drop(next(iter(self._sizes)))

    def _to_compress(self) -> int:
        keep = self._settings.plain_steps
        return 0 if keep is None else min(max(0, len(self._plain) - keep), AT_ONCE)

    def _take(self, name: str) -> None:
        path = written(self.folder / name)
        if path is None:
            return
        if path.name == name:
            # A compressed one beside it is of a run that had come further than its last checkpoint.
            path.with_name(name + COMPRESSED).unlink(missing_ok=True)
            self._plain[name] = None
            self._plain.move_to_end(name)
        self._note(name, path)
        self._sizes.move_to_end(name)

    def _note(self, name: str, path: Path) -> None:
        size = path.stat().st_size
        self.total += size - self._sizes.get(name, 0)
        self._sizes[name] = size

    def _drop(self, name: str) -> None:
        self.total -= self._sizes.pop(name)
        self._plain.pop(name, None)
        if (path := written(self.folder / name)) is not None:
            path.unlink()


class Retention:
    """The bounded folders of an experiment. What cannot be compressed or dropped is said once, and training goes on."""

    def __init__(self, experiment: Path, settings: RetentionSettings) -> None:
        self._folders = [StepFolder(experiment / name, settings) for name in FOLDERS]
        self._failed = False

    def tidy(self, step: int) -> None:
        """Keep the folders within their bounds, once the files of a step are written."""
        try:
            for folder in self._folders:
                folder.tidy(step)
        except OSError as error:
            if not self._failed:
                logger.warning("old rollouts and samples could not be compressed or dropped: %s", error)
            self._failed = True

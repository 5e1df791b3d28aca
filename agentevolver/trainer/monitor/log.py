"""Files of a run: metrics.jsonl, status.json, and retention of its step files.

metrics.jsonl has one object a step. A resumed run moves the steps that it repeats to metrics.superseded.jsonl.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentevolver.utils.files import COMPRESSED, append_jsonl, compress, parse, whole, write_json
from agentevolver.utils.numbers import number

if TYPE_CHECKING:
    from agentevolver.config.training import RetentionSettings

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
STATUS = "status.json"
SUPERSEDED = "metrics.superseded.jsonl"
SAMPLES = "samples"
FOLDERS = ("trajectories", "validation", SAMPLES)
_SUFFIX = ".jsonl"
# Files of a folder that are compressed after one step.
AT_ONCE = 16
GB = 10**9


class Logger(Protocol):
    """The methods of verl's `Tracking` in use here."""

    def log(self, data: dict[str, Any], step: int) -> None: ...

    def finish(self, exit_code: int = ...) -> None: ...


class RunLog:
    """Writes a step's metrics to metrics.jsonl, then to verl's loggers, then calls `told`."""

    def __init__(self, directory: Path, backend: Logger, told: Callable[[], None] | None = None) -> None:
        self._path = directory / METRICS
        self._backend = backend
        self._told = told

    def log(self, data: dict[str, Any], step: int) -> None:
        numbers = {key: found for key, value in data.items() if (found := number(value)) is not None}
        record = {"step": step, "time": round(time.time(), 3), **numbers}
        append_jsonl(self._path, record)
        self._backend.log(data=numbers, step=step)
        if self._told is not None:
            self._told()

    def finish(self, exit_code: int = 0) -> None:
        self._backend.finish(exit_code=exit_code)


def supersede_metrics(directory: Path, last_kept_step: int) -> int:
    """Move the metrics after `last_kept_step` out of metrics.jsonl and return the number of moved steps.

    Lines that are torn by a kill or a full disk are moved too, and logged.
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
    try:
        with (directory / METRICS).open("rb") as lines:
            return max((step for line in lines if (step := _step_of(line)) is not None), default=None)
    except FileNotFoundError:
        return None


def last_trained_step(directory: Path) -> int:
    """Return the last trained step in metrics.jsonl, or 0. Records of an evaluation do not count."""
    try:
        with (directory / METRICS).open("rb") as lines:
            trained = (record for line in lines if _is_of_training(record := parse(line) or {}))
            return max((step for record in trained if isinstance(step := record.get("step"), int)), default=0)
    except FileNotFoundError:
        return 0


def _is_of_training(record: dict[str, Any]) -> bool:
    return "training/global_step" in record or not any(name.startswith("val-") for name in record)


def _step_of(line: bytes) -> int | None:
    step = (parse(line) or {}).get("step")
    return step if isinstance(step, int) else None


def read_status(directory: Path) -> dict[str, Any]:
    """Return the content of `status.json`, or {} if it cannot be read."""
    try:
        return parse((directory / STATUS).read_bytes()) or {}
    except OSError:
        return {}


class Status:
    """Writes what a run is doing to `status.json`. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / STATUS
        self._lock = threading.Lock()
        self._last: dict[str, Any] = {}
        self._stuck: str | None = None
        self._warning: str | None = None
        self._told: str | None = None

    def set(self, phase: str, **facts: Any) -> None:
        """Replace the phase; `facts` must be JSON-serialisable."""
        with self._lock:
            self._last = {"phase": phase, **facts}
            self._write()

    def note(self, stuck: str | None) -> None:
        """Set or clear the reason why the phase makes no progress."""
        with self._lock:
            self._stuck = stuck
            self._write()

    def warn(self, warning: str | None) -> None:
        """Set or clear a warning that the user should act on."""
        with self._lock:
            self._warning = warning
            self._write()

    def tell(self, text: str) -> None:
        """Tell the user something that holds for the rest of the run."""
        with self._lock:
            self._told = text
            self._write()

    def _write(self) -> None:
        beside = {"stuck": self._stuck, "warning": self._warning, "told": self._told}
        told = {name: text for name, text in beside.items() if text is not None}
        write_json(
            self._path, {**({"phase": "starting"} | self._last), "time": round(time.time(), 3), **told}, durable=False
        )


def tidy(folder: Path, settings: RetentionSettings) -> None:
    """Compress the older step files of a folder and drop the oldest; no resume needs them. The newest always stays."""
    found = (path for path in folder.glob(f"[!.]*{_SUFFIX}*") if path.suffix in (_SUFFIX, COMPRESSED))
    # Oldest first. Compressing gives a file a new time, so compressed files come first.
    files = sorted(found, key=lambda path: (path.suffix == _SUFFIX, path.stat().st_mtime_ns, path.name))
    plain = [path for path in files if path.suffix == _SUFFIX]
    # A compressed file beside a plain one is left from before a resume that repeated the step.
    for double in {path.with_name(path.name + COMPRESSED) for path in plain}.intersection(files):
        double.unlink()
        files.remove(double)
    for path in plain[: -settings.plain_steps][:AT_ONCE]:
        files[files.index(path)] = compress(path)
    bounds = (settings.folder_gb, settings.samples_gb if folder.name == SAMPLES else None)
    limit = min((bound * GB for bound in bounds if bound is not None), default=math.inf)
    sizes = [path.stat().st_size for path in files]
    total = sum(sizes)
    for path, size in list(zip(files, sizes, strict=True))[:-1]:
        if total <= limit:
            break
        path.unlink()
        total -= size


class Retention:
    """Keeps the step files of an experiment within bounds. Only the first failure is logged; training continues."""

    def __init__(self, experiment: Path, settings: RetentionSettings) -> None:
        self._folders = [experiment / name for name in FOLDERS]
        self._settings = settings
        self._failed = False
        for folder in self._folders:
            for draft in folder.glob(f".*{_SUFFIX}*"):  # of a run that was killed while it wrote
                draft.unlink()

    def tidy(self) -> None:
        try:
            for folder in self._folders:
                tidy(folder, self._settings)
        except OSError as error:
            if not self._failed:
                logger.warning("old rollouts and samples could not be compressed or dropped: %s", error)
            self._failed = True

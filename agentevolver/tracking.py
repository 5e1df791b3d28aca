"""Everything a run leaves behind: metrics.jsonl, trajectory files, its status, and whatever loggers verl was asked for.

Each record is on disk before the run goes on. Files of a step are written whole or not at all; metrics.jsonl has one object a
step, appended and flushed. A resumed run moves the metrics of the steps it repeats to metrics.superseded.jsonl.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Number
from pathlib import Path
from typing import Any, Protocol

import orjson

logger = logging.getLogger(__name__)


class Logger(Protocol):
    """What is used of verl's `Tracking`."""

    def log(self, data: dict[str, Any], step: int) -> None: ...

    def finish(self, exit_code: int = ...) -> None: ...


def free_bytes(folder: Path) -> int:
    """Return how much is free where a folder lies, or will lie."""
    existing = next(parent for parent in (folder.resolve(), *folder.resolve().parents) if parent.exists())
    return shutil.disk_usage(existing).free


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give the path of a draft that takes the place of `path` when the block ends, and is removed if it fails (a full disk)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write one JSON object, whole or not at all."""
    with whole(path) as draft:
        draft.write_text(json.dumps(content), encoding="utf-8")


def write_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line, whole or not at all."""
    with whole(path) as draft, draft.open("wb") as file:
        for record in records:
            file.write(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read a JSONL file; a torn last line (the writer was killed) is left out, a broken line before it raises ValueError."""
    lines = path.read_bytes().splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"{path}:{number}: {error}") from error
    return records


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
    """

    def __init__(self, directory: Path, backend: Logger) -> None:
        self._path = directory / "metrics.jsonl"
        self._backend = backend

    def log(self, data: dict[str, Any], step: int) -> None:
        """Append one object `{"step", "time", metric: number…}` and pass the numbers on."""
        numbers = {key: number for key, value in data.items() if (number := plain_number(value)) is not None}
        record = {"step": step, "time": round(time.time(), 3), **numbers}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(orjson.dumps(record) + b"\n")
        self._backend.log(data=numbers, step=step)

    def finish(self, exit_code: int = 0) -> None:
        """Close verl's loggers."""
        self._backend.finish(exit_code=exit_code)


def supersede_metrics(directory: Path, last_kept_step: int) -> int:
    """Move the metrics after `last_kept_step` out of metrics.jsonl, for a run that repeats those steps; returns how many."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        return 0
    records = read_jsonl(path)
    repeated = [record for record in records if record["step"] > last_kept_step]
    if repeated:
        with (directory / "metrics.superseded.jsonl").open("ab") as file:
            file.writelines(orjson.dumps(record) + b"\n" for record in repeated)
    write_jsonl(path, [record for record in records if record["step"] <= last_kept_step])
    return len(repeated)


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
        write_json(self._path, {**({"phase": "starting"} | self._last), "time": round(time.time(), 3), **stuck})

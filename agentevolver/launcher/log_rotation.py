"""Logs of a run within bounds, whoever writes them: a long one is copied aside and emptied in place, and only the
newest pieces are kept.

Every log of an experiment is appended to (`O_APPEND`), so that its writer, which holds it open, goes on at the new end.
What is written between the last read and the emptying, microseconds, is lost. Ray's own files of its workers may be
written at an offset instead: they are then sparse, and are measured by what they take on the disk.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from agentevolver.config.schema import RetentionSettings
from agentevolver.launcher.worker_logs import ray_logs
from agentevolver.utils.files import remove_tree, whole

logger = logging.getLogger(__name__)

EVERY_S = 10.0
MB = 10**6
_PIECE = re.compile(r"(?P<log>.+)\.\d{8}-\d{6}(?:-\d+)?")


@dataclass(frozen=True)
class LogLimits:
    """How large a log may be in bytes, and how many older pieces of it are kept; None: no limit."""

    size: int | None = None
    pieces: int | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> LogLimits:
        """Return those of a resolved configuration, none where it has no section `retention`."""
        if "retention" not in config:
            return cls()
        section = RetentionSettings.model_validate(config["retention"])
        return cls(None if section.log_mb is None else int(section.log_mb * MB), section.log_files)


def piece_of(log: Path, moment: float) -> Path:
    """Return a free name beside a log for what it holds up to a moment: `main.20261123-052243.log`."""
    stamp = datetime.fromtimestamp(moment).strftime("%Y%m%d-%H%M%S")
    names = (
        log.with_name(f"{log.stem}.{stamp}{again}{log.suffix}") for again in ("", *(f"-{n}" for n in range(2, 10_000)))
    )
    return next(path for path in names if not path.exists())


def rotate(log: Path, size: int, piece: Path) -> bool:
    """Copy a log that takes more than `size` bytes to `piece` and empty it; returns whether that was so."""
    with log.open("r+b") as file:
        found = os.fstat(file.fileno())
        if min(found.st_size, found.st_blocks * 512) <= size:
            return False
        with whole(piece, durable=False) as draft, draft.open("wb") as copy:
            file.seek(os.lseek(file.fileno(), 0, os.SEEK_DATA))
            shutil.copyfileobj(file, copy, 1 << 20)
            file.truncate(0)
    return True


class LogKeeper:
    """Keeps an experiment's logs, and the files of Ray's workers while a run goes on, within bounds.

    Args:
        logs: the experiment's folder of logs; `workers/<run>/` in it holds what was kept of Ray's, of as many runs as a
            log has pieces.
        temp_dir: the run's temporary folder, with Ray's; None without one.
        limits: of every single log.
    """

    def __init__(self, logs: Path, temp_dir: Path | None, limits: LogLimits) -> None:
        self._logs = logs
        self._streams = None if temp_dir is None else ray_logs(temp_dir)
        self._limits = limits
        self._told = False

    def tidy(self) -> None:
        """Look at every log once. What cannot be done is said once, and nothing is raised."""
        for part in (self._rotate, self._drop_old):
            try:
                part()
            except OSError as error:
                if not self._told:
                    logger.warning("the logs in %s cannot be kept within bounds: %s", self._logs, error)
                self._told = True

    def _rotate(self) -> None:
        size = self._limits.size
        if size is None:
            return
        for log in self._logs.glob("*.log"):
            if _PIECE.fullmatch(log.stem) is None:
                rotate(log, size, piece_of(log, time.time()))
        for stream in self._streams.glob("worker-*") if self._streams is not None else ():
            if stream.suffix in (".out", ".err"):
                rotate(stream, size, stream.with_name(f"{stream.name}.1"))

    def _drop_old(self) -> None:
        keep = self._limits.pieces
        if keep is None:
            return
        pieces: dict[str, list[Path]] = defaultdict(list)
        for path in self._logs.glob("*.log"):
            if match := _PIECE.fullmatch(path.stem):
                pieces[match["log"]].append(path)
        for found in pieces.values():
            for path in sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)[keep:]:
                path.unlink()
        runs = sorted((path for path in (self._logs / "workers").glob("[!.]*") if path.is_dir()), reverse=True)
        for folder in runs[max(1, keep) :]:
            remove_tree(folder)

"""Log rotation, and the last output of failed Ray workers.

A failed worker is one whose output holds a traceback or an interpreter crash, or whose exit Ray reports as unintended.
The end of its output is copied to the experiment, because Ray's folder is removed with the run.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from agentevolver.utils.files import remove_tree, whole

if TYPE_CHECKING:
    from agentevolver.config.training import RetentionSettings  # the guard's process does without pydantic

logger = logging.getLogger(__name__)


KEPT_BYTES = 65_536
MOST_FILES = 100
SEARCHED_BYTES = 4 << 20
BEFORE_BYTES = 2_048

_STREAM = re.compile(r"worker-(?P<worker>[0-9a-f]+)-[0-9a-f]+-(?P<pid>\d+)\.(?P<stream>err|out)")
_EXIT = re.compile(rb"Reporting worker exit, worker id = ([0-9a-f]+),.*?exit_type = (\w+), exit_detail = ([^\n]*)")
_CRASH = re.compile(
    rb"Traceback \(most recent call last\)|Fatal Python error|\*\*\* SIG[A-Z]+ received|terminate called after throwing"
)
# The last line of a traceback, after the prefix that vLLM gives the lines of its processes.
_ERROR = re.compile(rb"^(?:\(\w+ pid=\d+\) )?((?:\w+\.)*\w*(?:Error|Exception): \S[^\r\n]*)", re.MULTILINE)
TOLD_CHARACTERS = 300
_ACTOR = re.compile(rb"^:(?:actor_name|task_name):(\S+)", re.MULTILINE)


def unintended_exits(temp_dir: Path) -> dict[str, str]:
    """Return {worker id: Ray's reason} for the workers that ended unintentionally so far.

    Call it before the run is stopped: stopping ends every worker.
    """
    try:
        content = (ray_logs(temp_dir) / "gcs_server.out").read_bytes()
    except OSError:
        return {}
    ended = (
        (worker.decode(), kind.decode(), detail.decode(errors="replace"))
        for worker, kind, detail in _EXIT.findall(content)
    )
    return {worker: f"{kind}: {detail}" for worker, kind, detail in ended if not kind.startswith("INTENDED")}


def keep_worker_logs(temp_dir: Path, exits: Mapping[str, str], target: Path) -> int:
    """Copy the end of each failed worker's output to `target` as ACTOR-PID.err and .out. Return the number of files.

    Args:
        exits: result of `unintended_exits`.
    """
    written = 0
    errors: dict[str, str] = {}
    for path in sorted(ray_logs(temp_dir).glob("worker-*"), key=lambda path: path.name):
        match = _STREAM.fullmatch(path.name)
        if match is None or written >= MOST_FILES:
            continue
        try:
            content = last_words(path, anyway=match["worker"] in exits)
            if content is None:
                continue
            with path.open("rb") as file:
                actor = _ACTOR.search(file.read(BEFORE_BYTES))
            name = f"{actor.group(1).decode(errors='replace') if actor else 'worker'}-{match['pid']}.{match['stream']}"
            ended = exits.get(match["worker"])
            target.mkdir(parents=True, exist_ok=True)
            (target / name.replace(os.sep, "_")).write_bytes((f"[{ended}]\n".encode() if ended else b"") + content)
            if (error_line := last_error(content)) is not None:
                errors.setdefault(error_line, name)
        except OSError as error:  # a full disk must not stop the run's end
            logger.warning("%s could not be copied: %s", path.name, error.strerror)
            return written
        written += 1
    if written:
        logger.info("the last output of failed workers: %s", target)
        for line, name in errors.items():
            logger.info("    %s: %s", name, line)
    return written


def last_error(content: bytes) -> str | None:
    """Return the error line of the last traceback, or None."""
    # In vLLM's output this line is the cause; the exception that reaches the trainer does not name it.
    found = _ERROR.findall(content)
    if not found:
        return None
    line = str(found[-1].decode(errors="replace"))
    return line if len(line) <= TOLD_CHARACTERS else line[: TOLD_CHARACTERS - 4] + " ..."


def last_words(path: Path, *, anyway: bool = False) -> bytes | None:
    """Return the text around the last traceback and the end of a stream, at most KEPT_BYTES. None without a traceback.

    Args:
        anyway: without a traceback, return the end of the stream.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - SEARCHED_BYTES))
        content = file.read()
    crashes = [match.start() for match in _CRASH.finditer(content)]
    if not content or not (crashes or anyway):
        return None
    if len(content) <= KEPT_BYTES:
        return content
    begin = max(0, crashes[-1] - BEFORE_BYTES) if crashes else len(content)
    if begin >= len(content) - KEPT_BYTES:
        return content[-KEPT_BYTES:]
    half = KEPT_BYTES // 2
    return content[begin : begin + half] + b"\n[...]\n" + content[-half:]


def ray_folder(temp_dir: Path) -> Path:
    """Return the folder for the run's Ray, inside the run's private one."""
    # Ray makes the folder it is given accessible to every user.
    return temp_dir / "ray"


def ray_logs(temp_dir: Path) -> Path:
    """Return the log folder of the run's Ray and its workers."""
    return ray_folder(temp_dir) / "session_latest" / "logs"


EVERY_S = 10.0
MB = 10**6
_PIECE = re.compile(r"(?P<log>.+)\.\d{8}-\d{6}(?:-\d+)?")


def piece_of(log: Path, moment: float) -> Path:
    """Return an unused name for a rotated log, `main.20261123-052243.log`."""
    stamp = datetime.fromtimestamp(moment).strftime("%Y%m%d-%H%M%S")
    names = (
        log.with_name(f"{log.stem}.{stamp}{again}{log.suffix}") for again in ("", *(f"-{n}" for n in range(2, 10_000)))
    )
    return next(path for path in names if not path.exists())


def rotate(log: Path, size: int, piece: Path) -> bool:
    """Copy a log larger than `size` bytes to `piece` and empty it. Return whether it was rotated."""
    # Emptied in place (as logrotate's `copytruncate`), because the writer keeps the file open. Logs of the experiment
    # are opened with O_APPEND, so the writer continues at the new end. Ray may write at an offset: its files become
    # sparse, so their size is measured in blocks on the disk.
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
    """Keeps the logs of an experiment and of its Ray workers within bounds.

    Args:
        logs: the experiment's log folder; `workers/<run>/` in it holds the output of failed workers.
        temp_dir: the run's temporary folder with Ray's logs, or None.
    """

    def __init__(self, logs: Path, temp_dir: Path | None, retention: RetentionSettings) -> None:
        self._logs = logs
        self._streams = None if temp_dir is None else ray_logs(temp_dir)
        self._retention = retention
        self._told = False

    def tidy(self) -> None:
        """Rotate and remove logs once. Only the first failure is logged; nothing is raised."""
        for part in (self._rotate, self._drop_old):
            try:
                part()
            except OSError as error:
                if not self._told:
                    logger.warning("the logs in %s cannot be kept within bounds: %s", self._logs, error)
                self._told = True

    def _rotate(self) -> None:
        size = int(self._retention.log_mb * MB)
        for log in self._logs.glob("*.log"):
            if _PIECE.fullmatch(log.stem) is None:
                rotate(log, size, piece_of(log, time.time()))
        for stream in self._streams.glob("worker-*") if self._streams is not None else ():
            if stream.suffix in (".out", ".err"):
                rotate(stream, size, stream.with_name(f"{stream.name}.1"))

    def _drop_old(self) -> None:
        keep = self._retention.log_files
        pieces: dict[str, list[Path]] = defaultdict(list)
        for path in self._logs.glob("*.log"):
            if match := _PIECE.fullmatch(path.stem):
                pieces[match["log"]].append(path)
        for found in pieces.values():
            for path in sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)[keep:]:
                path.unlink()
        runs = sorted((path for path in (self._logs / "workers").glob("[!.]*") if path.is_dir()), reverse=True)
        for folder in runs[keep:]:
            remove_tree(folder)

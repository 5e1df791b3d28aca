"""The last words of a failed run's Ray workers, kept in the experiment when Ray's own folder goes with the run.

A worker is kept whose output holds a traceback or a crash of its interpreter, or whose end Ray reported as no intended
one (an exception in an actor's constructor, a signal, no memory left).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

# What is kept of each stream: around its last traceback, and its end.
KEPT_BYTES = 65_536
MOST_FILES = 100
# How far back a stream is searched for a traceback.
SEARCHED_BYTES = 4 << 20
BEFORE_BYTES = 2_048

_STREAM = re.compile(r"worker-(?P<worker>[0-9a-f]+)-[0-9a-f]+-(?P<pid>\d+)\.(?P<stream>err|out)")
_EXIT = re.compile(rb"Reporting worker exit, worker id = ([0-9a-f]+),.*?exit_type = (\w+), exit_detail = ([^\n]*)")
_CRASH = re.compile(
    rb"Traceback \(most recent call last\)|Fatal Python error|\*\*\* SIG[A-Z]+ received|terminate called after throwing"
)
_ACTOR = re.compile(rb"^:(?:actor_name|task_name):(\S+)", re.MULTILINE)


def unintended_exits(temp_dir: Path) -> dict[str, str]:
    """The workers of a run's cluster that ended as nobody meant them to by now: their id, and how Ray puts it.

    Asked before a run is stopped: then every worker ends.
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
    """Copy the last of each failed worker's streams to `target`, as ACTOR-PID.err and .out; returns how many files were
    written.

    Args:
        exits: what `unintended_exits` returned.
    """
    written = 0
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
        except OSError as error:  # a full disk must not keep the rest of the run from being stopped
            logger.warning("%s was not kept: %s", path.name, error.strerror)
            return written
        written += 1
    if written:
        logger.info("the last words of failed workers: %s", target)
    return written


def last_words(path: Path, *, anyway: bool = False) -> bytes | None:
    """The end of a stream with its last traceback, KEPT_BYTES at most; None where there is no traceback, or nothing at
    all.

    Args:
        anyway: return the end of a stream without a traceback too.
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
    """Where the run's Ray keeps its files: below the run's own folder, for Ray opens the folder that it is given to
    everybody."""
    return temp_dir / "ray"


def ray_logs(temp_dir: Path) -> Path:
    """Where the run's Ray and its workers write their logs."""
    return ray_folder(temp_dir) / "session_latest" / "logs"

"""Files that survive a kill, a full disk and a power loss: atomic writes, JSON lines, private files and folders."""

from __future__ import annotations

import errno
import glob
import gzip
import io
import itertools
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

PRIVATE_FILE = 0o600
# Suffix of compressed files of JSON lines.
COMPRESSED = ".gz"
# Bytes before the offset that are compared, to tell a grown file from another one with its name.
_MEMORY = 256
_DRAFTS = itertools.count()
# Bytes per read when looking for the last line break.
_BLOCK = 64 * 1024


def free_bytes(folder: Path) -> int:
    # The folder may not exist yet.
    existing = next(parent for parent in (folder.resolve(), *folder.resolve().parents) if parent.exists())
    return shutil.disk_usage(existing).free


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot sync a folder: its entries are on the server at once.
        if error.errno != errno.EINVAL or not stat.S_ISDIR(os.fstat(handle).st_mode):
            raise
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    # Files before the folders that name them.
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            if not (path := Path(parent, name)).is_symlink():
                sync(path)
        sync(Path(parent))


@contextmanager
def whole(path: Path, *, durable: bool = True, mode: int | None = None) -> Iterator[Path]:
    """Yield the path of a draft that replaces `path` when the block ends, and is removed if the block fails.

    Args:
        durable: survive a power loss. False saves two syncs, for files that are soon rewritten.
        mode: permissions from the first byte on; None: the default.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{next(_DRAFTS)}")
    try:
        if mode is not None:
            os.close(create(draft, mode))
        yield draft
        if durable:
            sync(draft)
        draft.replace(path)
        if durable:
            sync(path.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def remove_drafts(path: Path) -> None:
    """Remove drafts that killed processes left. No other process may be writing the file."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*"):
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, durable: bool = True, mode: int | None = None) -> None:
    with whole(path, durable=durable, mode=mode) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any], *, durable: bool = True, indent: int | None = None) -> None:
    write_text(path, json.dumps(content, indent=indent), durable=durable)


def write_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    with whole(path) as draft, draft.open("wb") as file:
        for record in records:
            file.write(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")


def append_jsonl(path: Path, record: Mapping[str, Any]) -> None:
    """Append a JSON object as a line, synced. Raises OSError, and writes nothing, unless the whole line fits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = orjson.dumps(record) + b"\n"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        # `fstat` of the open file, not `stat` of the path: a device has no size, and a pipe no end.
        size = os.fstat(handle).st_size
        # Close a torn last line, so that only that record is lost.
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        try:
            written = os.write(handle, line)
            if written != len(line):
                raise OSError(f"{path}: only {written} of {len(line)} bytes could be written; is the disk full?")
            os.fsync(handle)
        except OSError:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)


def cut_torn(path: Path) -> None:
    """Cut off a last line without a line break. No other process may be writing the file."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _BLOCK)
            file.seek(begin)
            if (at := file.read(end - begin).rfind(b"\n")) >= 0:
                end = begin + at + 1
                break
            end = begin
        file.truncate(end)


def parse(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line, or None."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def open_lines(path: Path) -> io.BufferedIOBase:
    return gzip.open(path, "rb") if path.suffix == COMPRESSED else path.open("rb")


def written(path: Path) -> Path | None:
    # The file, or its compressed form.
    return next((found for found in (path, path.with_name(path.name + COMPRESSED)) if found.exists()), None)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read a JSONL file. A torn last line is skipped; a broken line before it raises ValueError."""
    with open_lines(path) as file:
        lines = file.read().splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"{path}:{number}: {error}") from error
    return records


def compress(path: Path, level: int = 1) -> Path:
    # gzip's level 1 is 5 times as fast as the default.
    target = path.with_name(path.name + COMPRESSED)
    with whole(target) as draft, path.open("rb") as source, gzip.open(draft, "wb", compresslevel=level) as packed:
        shutil.copyfileobj(source, packed, 1 << 20)
    path.unlink()
    return target


def remove_tree(folder: Path) -> None:
    # Renamed first: an interrupted removal must not leave half a folder under the name.
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    try:
        folder.rename(gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone, ignore_errors=True)


def move(source: Path, target: Path) -> None:
    sync(source)
    source.replace(target)
    sync(target.parent)


def create(path: Path, mode: int = PRIVATE_FILE) -> int:
    """Create a file with exactly these permissions; raises FileExistsError for anything there, even a dangling link."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    # The umask has reduced the mode of `open`.
    os.fchmod(handle, mode)
    return handle


def private_folder(path: Path) -> Path:
    """Create a folder with mode 0700, or accept this user's own; raises PermissionError for anything else."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    # Not `stat`: another user's link to one of this user's folders must not pass.
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is not a folder that only this user can enter; remove it")
    return path


@dataclass(frozen=True, slots=True)
class Line:
    offset: int
    value: dict[str, Any]


class GrowingFile:
    """Reader of a growing JSONL file: each complete line once. If the file is replaced or truncated, reading restarts
    and `generation` changes. `broken` counts lines that are not JSON objects."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0
        self.broken = 0
        self._offset = 0
        self._before = b""

    def read(self) -> Iterator[Line]:
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            self._restart()
            return
        with file:
            if not self._is_same(file.fileno()):
                self._restart()
            file.seek(self._offset)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                offset, self._offset = self._offset, self._offset + len(raw)
                self._before = (self._before + raw[-_MEMORY:])[-_MEMORY:]
                # A run must stay readable after a full disk: skip and count broken lines.
                value = parse(raw)
                if value is None:
                    self.broken += 1
                else:
                    yield Line(offset, value)

    def _is_same(self, handle: int) -> bool:
        start = self._offset - len(self._before)
        return os.pread(handle, len(self._before), start) == self._before

    def _restart(self) -> None:
        if self._offset:
            self.generation += 1
            self._offset, self._before, self.broken = 0, b"", 0


def read_at(path: Path, offset: int) -> dict[str, Any] | None:
    with open_lines(path) as file:
        file.seek(offset)
        return parse(file.readline())


def signature(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes whenever the file does, or None if there is no file."""
    try:
        stat = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns

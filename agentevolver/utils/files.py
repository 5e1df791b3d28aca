"""Files that outlive a kill, a full disk and a loss of power: atomic writes, JSON lines, private files and folders.

A file that `whole` writes is the old one or the new one, whatever happens, and the new one once `whole` has returned:
its content is synced before it takes its name, and the folder that holds the name after that. JSON lines are appended
in one write each; a line that was torn all the same is closed by the next one, so that it costs one record and not two.

`GrowingFile` follows JSON lines that another process writes, by offset. There a last line without its line break is not
there yet, and a line that is no JSON object is counted and passed over: what can be seen of a run should be seen, also
after a disk was full.
"""

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
# What a file is called that holds JSON lines and was compressed.
COMPRESSED = ".gz"
# So many bytes before the offset are compared, to tell a file that grew from another one of the same name.
_MEMORY = 256
_DRAFTS = itertools.count()
# Bytes that are looked at once.
_BLOCK = 64 * 1024


def free_bytes(folder: Path) -> int:
    """Return how much is free where a folder lies, or will lie."""
    existing = next(parent for parent in (folder.resolve(), *folder.resolve().parents) if parent.exists())
    return shutil.disk_usage(existing).free


def sync(path: Path) -> None:
    """Bring a file's content, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems have no sync of a folder: what it names is on the server at once.
        if error.errno != errno.EINVAL or not stat.S_ISDIR(os.fstat(handle).st_mode):
            raise
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Bring a folder with everything below it to the disk, files before the folders that name them."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            if not (path := Path(parent, name)).is_symlink():
                sync(path)
        sync(Path(parent))


@contextmanager
def whole(path: Path, *, durable: bool = True, mode: int | None = None) -> Iterator[Path]:
    """Give the path of a draft that takes the place of `path` when the block ends,
    and is removed if it fails (a full disk).

    Args:
        path: what is written; its folder is made.
        durable: whether a loss of power may not take it back. False saves two syncs, for what is written again soon.
        mode: the permissions of the file, from before its first byte; None: those of any new file.

    Raises:
        OSError: it could not be written; what was there is untouched.
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
    """Remove the drafts of a file (`whole`) that killed processes left beside it;
    only for who knows that no other writes it."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*"):
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, durable: bool = True, mode: int | None = None) -> None:
    """Write a text, whole or not at all; `durable` and `mode` as in `whole`."""
    with whole(path, durable=durable, mode=mode) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any], *, durable: bool = True, indent: int | None = None) -> None:
    """Write one JSON object, whole or not at all."""
    write_text(path, json.dumps(content, indent=indent), durable=durable)


def write_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line, whole or not at all."""
    with whole(path) as draft, draft.open("wb") as file:
        for record in records:
            file.write(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")


def append_jsonl(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON object as a line, synced; a torn line before it is closed first.

    Raises:
        OSError: it could not be written whole, and is not there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = orjson.dumps(record) + b"\n"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        # Not the status of the path: a device has no size, and a pipe no end.
        size = os.fstat(handle).st_size
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
    """Cut off a last line without its line break, which a kill tore; only for who knows that no other writes the file.
    Nothing happens where there is none."""
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
    """Return the JSON object of a line, None if it holds none."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def open_lines(path: Path) -> io.BufferedIOBase:
    """Open a file of lines for reading, one whose name ends in `.gz` as what was compressed."""
    return gzip.open(path, "rb") if path.suffix == COMPRESSED else path.open("rb")


def written(path: Path) -> Path | None:
    """Return the file of this name, or what it was compressed to; None if there is neither."""
    return next((found for found in (path, path.with_name(path.name + COMPRESSED)) if found.exists()), None)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read a JSONL file; a torn last line (the writer was killed) is left out,
    a broken line before it raises ValueError."""
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
    """Put `<path>.gz` in the place of a file, whole or not at all; returns its path. The lowest level is 5 times as
    fast as the usual."""
    target = path.with_name(path.name + COMPRESSED)
    with whole(target) as draft, path.open("rb") as source, gzip.open(draft, "wb", compresslevel=level) as packed:
        shutil.copyfileobj(source, packed, 1 << 20)
    path.unlink()
    return target


def remove_tree(folder: Path) -> None:
    """Remove a folder so that no part of it is left under its name:
    it is renamed first, and a kill leaves `.<name>.gone`.

    A folder that is not there is removed already. What is left of an earlier call is removed too.
    """
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    try:
        folder.rename(gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone, ignore_errors=True)


def move(source: Path, target: Path) -> None:
    """Give a file that is written another name, durably; what had that name is replaced."""
    sync(source)
    source.replace(target)
    sync(target.parent)


def create(path: Path, mode: int = PRIVATE_FILE) -> int:
    """Make a new file with exactly these permissions, whatever the umask, and return its descriptor for writing.

    Raises:
        FileExistsError: something is there already, be it a dangling link.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    os.fchmod(handle, mode)
    return handle


def private_folder(path: Path) -> Path:
    """Make a folder for this user alone (mode 0700), with those above it, or take one that is; returns it.

    Raises:
        OSError: it cannot be made; PermissionError if something else stands there, a stranger's folder say.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    # Not `stat`: a stranger's link to a folder of this user's would lead others there.
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is not a folder that only this user can enter; remove it")
    return path


@dataclass(frozen=True, slots=True)
class Line:
    """A complete line: where it begins, and what it says."""

    offset: int
    value: dict[str, Any]


class GrowingFile:
    """The complete lines of a file, each once. A file that was replaced
    or cut short is begun anew: `generation` then changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0
        self.broken = 0
        self._offset = 0
        self._before = b""

    def read(self) -> Iterator[Line]:
        """Yield what was added since the last call (all of it if `generation` has changed);
        nothing while there is no file."""
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
    """Return the object of the line that begins at an offset of a file, compressed or not;
    None if there is none any more."""
    with open_lines(path) as file:
        file.seek(offset)
        return parse(file.readline())


def signature(path: Path) -> tuple[int, int, int] | None:
    """Return what changes whenever a file does, None if it does not exist."""
    try:
        stat = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns

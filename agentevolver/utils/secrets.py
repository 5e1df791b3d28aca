"""Keys and tokens on their way to the processes that use them: as files that their owner alone can read, not as
variables.

A variable is inherited by every process that is started, environment hosts included, and is written down wherever
somebody logs an environment. So the launcher takes secrets out of the variables and puts each into a 0600 file of its
name in a 0700 folder; `SECRETS` names the folder, and who needs a secret asks for it by name (`secret`).
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from agentevolver.utils.files import create
from agentevolver.utils.masking import is_secret

SECRETS = "AGENTEVOLVER_SECRETS"
"""The variable with the folder."""
_KEY = re.compile(r"[_-](?:KEY|PAT|AUTH)$", re.IGNORECASE)
_LOGIN = re.compile(r"://[^/\s@:]*:[^/\s@]+@")
# Ray reads its own variables in each of its processes; the others are folders, whatever their names end with.
_NEVER = re.compile(r"RAY_.*|(?:OLD)?PWD", re.DOTALL)
LIBRARIES = re.compile(r"(?:https?|ftp|wss?|all)_proxy|hf_endpoint", re.IGNORECASE)
"""What libraries read by themselves wherever they connect; the hub's token, which they do too, is found through
`HF_TOKEN_PATH`."""


def secret(name: str, folder: str | None = None) -> str:
    """Return a secret without surrounding blanks: the variable of that name, else its file; empty if there is neither.

    Args:
        folder: where the files are; None: where the variable `SECRETS` says.
    """
    value = os.environ.get(name, "").strip()
    folder = folder or os.environ.get(SECRETS)
    if value or not folder:
        return value
    try:
        return _read(Path(folder) / name).strip()
    except (OSError, ValueError):
        return ""


def secrets_in(environ: Mapping[str, str], names: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that are secrets: by their name, because they are among `names`, or for an address with a
    password in it.

    Ray's own variables (`RAY_...`) never are.
    """
    wanted = set(names)
    return {
        name: value
        for name, value in environ.items()
        if value
        and not _NEVER.fullmatch(name)
        and (name in wanted or is_secret(name) or _KEY.search(name) or _LOGIN.search(value))
    }


def write_secrets(folder: Path, values: Mapping[str, str]) -> None:
    """Write each secret to a 0600 file of its name in a new 0700 folder.

    Raises:
        OSError: the folder is there already, or cannot be written.
    """
    folder.mkdir(mode=0o700)
    for name, value in values.items():
        with os.fdopen(create(folder / name), "wb") as file:
            file.write(os.fsencode(value))


def _read(path: Path) -> str:
    """Return a secret byte for byte, as the variable had it."""
    return os.fsdecode(path.read_bytes())


def remove_secrets(folder: Path) -> None:
    """Remove what `write_secrets` made; nothing there is fine."""
    shutil.rmtree(folder, ignore_errors=True)


def adopt_secrets(only: re.Pattern[str] | None = None) -> None:
    """Set the secrets as variables of this process, for libraries that look nowhere else; variables that are set
    already stay.

    What this process starts inherits them: call it where nothing is started that runs foreign code.

    Args:
        only: which, by their whole name; None: all.
    """
    if SECRETS not in os.environ:
        return
    for path in sorted(Path(os.environ[SECRETS]).glob("*")):
        if only is None or only.fullmatch(path.name):
            os.environ.setdefault(path.name, _read(path))


def forget(names: Iterable[str]) -> None:
    """Remove variables from this process for good: also from the copy that the kernel shows in /proc/self/environ.

    Linux alone; without /proc the variables are removed from `os.environ`, and children do not inherit them.
    """
    values = {name: os.environ.pop(name) for name in [*names] if name in os.environ}
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:
            # The fields after the command's name, whose number 3 is the first: env_start and env_end are 50 and 51
            # (proc(5)).
            fields = stat.read().rpartition(")")[2].split()
        start, end = int(fields[47]), int(fields[48])
        content = ctypes.string_at(start, end - start)
    except (OSError, ValueError, IndexError):
        return
    for name, value in values.items():
        for place in _places(content, f"{name}={value}".encode(errors="surrogateescape")):
            # The value alone: what keeps a pointer to another variable finds it where it was. No zeros: psutil reads up
            # to the first pair.
            ctypes.memset(start + place + len(name) + 1, ord("*"), len(os.fsencode(value)))


def _places(content: bytes, entry: bytes) -> Iterable[int]:
    """Yield where an entry begins in a block of entries that each end with a zero byte."""
    place = 0
    for found in content.split(b"\0"):
        if found == entry:
            yield place
        place += len(found) + 1

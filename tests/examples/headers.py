"""The commands that the comment at the head of an example prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_COMMAND = re.compile(r"^(?:[A-Z]+=\S+ |[A-Z]+=\"[^\"]*\" )*(?:python|bash) ")
_PROGRAM = re.compile(r"\b(?:launcher\.py|python -m \w+|bash \S+\.sh)")


def header(path: Path) -> list[str]:
    """Return the lines of the comment at the head of a file, without their marks."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("#!"):
            lines.append(line[1:].removeprefix(" "))
    return lines


def commands(path: Path) -> list[list[str]]:
    """Return the words of every command in a file's header; its own comment behind `#` is left out.

    Raises AssertionError for what looks like a command and does not stand on a line of its own, where no test would
    find it.
    """
    text = re.sub(r"\\\n\s*", "", "\n".join(header(path)))
    found, prose = [], []
    for line in text.splitlines():
        if line.startswith("  ") and _COMMAND.match(line.strip()):
            found.append(shlex.split(line, comments=True))
        else:
            prose.append(line)
    hidden = _PROGRAM.findall("\n".join(prose))
    assert not hidden, f"{path.name}: put {hidden} on a line of its own"
    return found

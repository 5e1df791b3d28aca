"""Dump files: a workspace as JSONL in ReMe's first-generation format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agentevolver.utils.files import write_jsonl
from experience_manager.errors import ExperienceError, StoreUnwritable
from experience_manager.experience import Experience, from_reme, to_reme


class DumpError(ExperienceError):
    pass


def write_dump(path: Path, experiences: Iterable[Experience]) -> int:
    """Write experiences as a stream; return their number. Raises StoreUnwritable."""
    count = 0

    def counted() -> Iterator[dict[str, Any]]:
        nonlocal count
        for experience in experiences:
            count += 1
            yield to_reme(experience)

    try:
        write_jsonl(path, counted())
    except OSError as error:
        raise StoreUnwritable(f"{path} cannot be written: {error.strerror}") from error
    return count


def read_dump(path: Path, workspace: str | None = None) -> list[Experience]:
    """Return the experiences of a dump; raises DumpError, which names the line."""
    experiences = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    experiences.append(_read_line(line, f"{path}:{number}", workspace))
    except (OSError, UnicodeDecodeError) as error:
        raise DumpError(f"{path} cannot be read: {error}") from error
    return experiences


def _read_line(line: str, place: str, workspace: str | None) -> Experience:
    try:
        return from_reme(json.loads(line), workspace)
    except ValueError as error:
        raise DumpError(f"{place}: {error}") from error

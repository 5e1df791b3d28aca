"""The steps of explorations under way, one file each, so that one which was killed goes on behind the last step that it
took.

A file is `{"opening": ...}` and then a line for every step. It is named by the exploration's key in the journal, and
gone once the exploration is recorded there. A line that the kill tore is cut off; a file that makes no sense is begun
anew, and the log says so.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

logger = logging.getLogger(__name__)

Phase = Literal["breadth", "depth"]


@dataclass(frozen=True, slots=True)
class ExploredStep:
    """One action of an explorer and its answer; `refused` says that the environment did not carry it out."""

    action: str
    observation: str
    phase: Phase
    refused: bool = False
    thought: str = ""


class Flight:
    """What one exploration has come to so far. Without a path it is kept in memory alone."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.opening: str | None = None
        self.steps: list[ExploredStep] = []
        if path is not None and path.exists():
            self._read(path)

    def begin(self, opening: str) -> None:
        """Forget what there was and begin with what the environment says first."""
        self.opening, self.steps = opening, []
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(orjson.dumps({"opening": opening}) + b"\n")

    def add(self, step: ExploredStep) -> None:
        """Append a step. It survives the death of this process from here on."""
        self.steps.append(step)
        if self._path is not None:
            with self._path.open("ab", buffering=0) as file:
                file.write(orjson.dumps(asdict(step)) + b"\n")

    def forget(self) -> None:
        """Forget what there was."""
        self.opening, self.steps = None, []
        self.land()

    def land(self) -> None:
        """Remove the file: the exploration is recorded."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path) -> None:
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        try:
            lines: list[Any] = [orjson.loads(line) for line in whole.splitlines()]
            if lines:
                self.opening, self.steps = str(lines[0]["opening"]), [ExploredStep(**line) for line in lines[1:]]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            logger.warning("%s holds no exploration under way (%s); it is begun anew", path, error)
            return
        if len(whole) < len(text):
            path.write_bytes(whole)

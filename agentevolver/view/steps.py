"""Which steps have a file in a folder, known without listing the folder again for every new one."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from agentevolver.utils.files import COMPRESSED, written

_FILE = re.compile(rf"step_(\d{{1,12}})\.jsonl(?:{re.escape(COMPRESSED)})?")
# After a change, so many steps behind the newest one are looked for; the whole folder is listed once in so many
# seconds.
AHEAD = 64
LIST_EVERY_S = 60.0


class StepFiles:
    """The files `step_<n>.jsonl` of a folder, compressed or not.

    A new step is found at once. One far behind the newest, or one that was removed, is noticed within a minute: callers
    find no file then.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._steps: list[int] = []
        self._mark = -1
        self._listed_at = float("-inf")
        self._is_complete = False

    def steps(self) -> Sequence[int]:
        """Return the steps, ascending."""
        with self._lock:
            try:
                mark = self.folder.stat().st_mtime_ns
            except (FileNotFoundError, NotADirectoryError):
                return []
            due = time.monotonic() - self._listed_at > LIST_EVERY_S
            if mark != self._mark or (due and not self._is_complete):
                if due or not self._steps:
                    self._list()
                else:
                    self._look_ahead()
                self._mark = mark
            return self._steps

    def path(self, step: int) -> Path | None:
        """Return the file of a step, None if there is none."""
        return written(self.folder / f"step_{step}.jsonl")

    def _list(self) -> None:
        found = (_FILE.fullmatch(path.name) for path in self.folder.iterdir())
        self._steps = sorted({int(match[1]) for match in found if match})
        self._listed_at, self._is_complete = time.monotonic(), True

    def _look_ahead(self) -> None:
        # Another list: whoever was given the last one goes on with it.
        new: list[int] = []
        step, self._is_complete = self._steps[-1], False
        while step < (new or self._steps)[-1] + AHEAD:
            step += 1
            if self.path(step) is not None:
                new.append(step)
        self._steps = [*self._steps, *new]

"""What a long run keeps of its rollouts and samples: the newest files as they are, older ones compressed, the oldest
dropped.

Each folder is bounded by itself. Metrics, checkpoints, the pool, task files and records of launches are none of these:
a resume or the page's curves need them. No resume needs a file that is dropped here; the page then lacks that step's
rollouts.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from pathlib import Path

from agentevolver.config.schema import RetentionSettings
from agentevolver.utils.files import COMPRESSED, compress, written

logger = logging.getLogger(__name__)

FOLDERS = ("trajectories", "validation", "samples")
_SUFFIX = ".jsonl"
# Compressed after one step at most: an experiment of an earlier release is caught up with over many steps.
AT_ONCE = 16
GB = 10**9


class StepFolder:
    """The files of one folder in the order of their writing. It is listed once; a step costs the same after any number
    of steps.

    Args:
        folder: holds `step_<n>.jsonl`, and files of the same kind under other names.
        settings: how much is kept.
    """

    def __init__(self, folder: Path, settings: RetentionSettings) -> None:
        self.folder = folder
        self.total = 0
        self._settings = settings
        self._step: int | None = None
        # Both by the name that a file has before it is compressed.
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._plain: OrderedDict[str, None] = OrderedDict()

    def tidy(self, step: int) -> None:
        """Take the files of the steps up to `step` into account, then compress and drop what is beyond the bounds."""
        # The last step again: its validation comes after it.
        if self._step is None:
            for draft in self.folder.glob(f".*{_SUFFIX}*"):  # of a run that was killed while it wrote
                draft.unlink()
            found = {path: path.stat().st_mtime_ns for path in self.folder.glob("[!.]*")}
            names = (
                path.name.removesuffix(COMPRESSED) for path in sorted(found, key=lambda path: (found[path], path.name))
            )
        else:
            names = (f"step_{number}{_SUFFIX}" for number in range(self._step, step + 1))
        for name in names:
            if name.endswith(_SUFFIX):
                self._take(name)
        self._step = step
        for name in list(self._plain)[: self._to_compress()]:
            del self._plain[name]
            self._note(name, compress(self.folder / name))
        limit = self._settings.folder_gb
        while limit is not None and self.total > limit * GB and len(self._sizes) > 1:
            self._drop(next(iter(self._sizes)))

    def _to_compress(self) -> int:
        keep = self._settings.plain_steps
        return 0 if keep is None else min(max(0, len(self._plain) - keep), AT_ONCE)

    def _take(self, name: str) -> None:
        path = written(self.folder / name)
        if path is None:
            return
        if path.name == name:
            # A compressed one beside it is of a run that had come further than its last checkpoint.
            path.with_name(name + COMPRESSED).unlink(missing_ok=True)
            self._plain[name] = None
            self._plain.move_to_end(name)
        self._note(name, path)
        self._sizes.move_to_end(name)

    def _note(self, name: str, path: Path) -> None:
        size = path.stat().st_size
        self.total += size - self._sizes.get(name, 0)
        self._sizes[name] = size

    def _drop(self, name: str) -> None:
        self.total -= self._sizes.pop(name)
        self._plain.pop(name, None)
        if (path := written(self.folder / name)) is not None:
            path.unlink()


class Retention:
    """The bounded folders of an experiment. What cannot be compressed or dropped is said once, and training goes on."""

    def __init__(self, experiment: Path, settings: RetentionSettings) -> None:
        self._folders = [StepFolder(experiment / name, settings) for name in FOLDERS]
        self._failed = False

    def tidy(self, step: int) -> None:
        """Keep the folders within their bounds, once the files of a step are written."""
        try:
            for folder in self._folders:
                folder.tidy(step)
        except OSError as error:
            if not self._failed:
                logger.warning("old rollouts and samples could not be compressed or dropped: %s", error)
            self._failed = True

"""Where things lie, AppWorld's data and the folders of an episode; and the error that means that nobody but the caller
is to blame."""

from __future__ import annotations

import os
from pathlib import Path

EXPERIMENT = "episode"
# The root is taken at import: an episode later points AppWorld to a root of its own.
_ROOT = Path(os.environ.get("APPWORLD_ROOT", os.getcwd())).resolve()


class WrongRequest(ValueError):
    """The client asked for something that cannot be."""


def data_folder() -> Path:
    """Return the folder with the data of all tasks, ground truth included."""
    return _ROOT / "data"


def episode_root(directory: str) -> Path:
    """Return the AppWorld root of the process that runs the agent's code."""
    return Path(directory) / "world"


def grading_root(directory: str) -> Path:
    """Return the AppWorld root of the process that grades: all data, and the outputs of the episode."""
    return Path(directory) / "grading"

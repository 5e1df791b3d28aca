"""The socket through which the trainer's weights reach vLLM, in a folder that only this user can enter.

verl unpickles what comes through it, and puts it at a guessable path in /tmp, the same for every run: the first job of
a private Ray always has the same id. A stranger, or another run, could bind it first.
"""

from __future__ import annotations

import functools
import os
import secrets
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from agentevolver.utils.files import private_folder

FOLDER = "AGENTEVOLVER_WEIGHTS"
"""The environment variable with the run's folder, which each node makes when it is first needed."""
_VERL_PREFIX = "rl-colocate-zmq-"
_LONGEST_NAME = "01000000-replica-1023-rank-1023.sock"
_PATH_BYTES = 107  # of a socket


def new_folder() -> Path:
    """Return the folder for a run's weights, without creating it.

    It is in /tmp or the launcher's temporary folder of the run (`ae-<run>/tmp`), which every node has or can create and
    where a socket's path is short enough; never in a node's own `TMPDIR`.
    """
    name, temporary = f"ae-w-{secrets.token_hex(8)}", Path(tempfile.gettempdir())
    fits = len(os.fsencode(temporary / name / _LONGEST_NAME)) <= _PATH_BYTES
    return (temporary if fits and temporary.parent.name.startswith("ae-") else Path("/tmp")) / name


def private_handle(handle: str) -> str:
    """Return the address in the run's folder for verl's in /tmp (`ipc:///tmp/...sock`).

    Raises RuntimeError if the run has no folder, PermissionError if it is open to others.
    """
    folder = os.environ.get(FOLDER)
    if not folder:
        raise RuntimeError(f"{FOLDER} is not set: weights are only sent through a folder of the run's own")
    return f"ipc://{private_folder(Path(folder)) / handle.rpartition('/')[2].removeprefix(_VERL_PREFIX)}"


def install(transfer: ModuleType) -> None:
    """Have both ends in `verl...bucketed_weight_transfer` meet in the run's folder."""
    for end in (transfer.BucketedWeightSender, transfer.BucketedWeightReceiver):
        end.__init__ = _meeting_in_private(end.__init__)


def _meeting_in_private(original: Any) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, zmq_handle: str, *args: Any, **kwargs: Any) -> None:
        original(self, private_handle(zmq_handle), *args, **kwargs)

    return __init__

"""The socket that carries weights from the trainer to vLLM, in a folder that only this user can enter."""

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
# verl unpickles what arrives and puts the socket at a guessable path in /tmp, the same for each private Ray cluster.
# Another user or run could bind it first.
_VERL_PREFIX = "rl-colocate-zmq-"
_LONGEST_NAME = "01000000-replica-1023-rank-1023.sock"
_PATH_BYTES = 107  # of a socket


def new_folder() -> Path:
    """Return the path of a folder for a run's weights, without creating it."""
    # /tmp or the launcher's temporary folder: every node can create it, and a socket's path fits. A node's own TMPDIR
    # may differ between nodes.
    name, temporary = f"ae-w-{secrets.token_hex(8)}", Path(tempfile.gettempdir())
    fits = len(os.fsencode(temporary / name / _LONGEST_NAME)) <= _PATH_BYTES
    return (temporary if fits and temporary.parent.name.startswith("ae-") else Path("/tmp")) / name


def private_handle(handle: str) -> str:
    """Return the address in the run's folder for verl's address in /tmp (`ipc:///tmp/...sock`).

    Raises RuntimeError if the run has no folder, PermissionError if others can access it.
    """
    folder = os.environ.get(FOLDER)
    if not folder:
        raise RuntimeError(f"{FOLDER} is not set: weights are only sent through a folder of the run's own")
    return f"ipc://{private_folder(Path(folder)) / handle.rpartition('/')[2].removeprefix(_VERL_PREFIX)}"


def install(transfer: ModuleType) -> None:
    """Patch both ends in verl's `bucketed_weight_transfer` to use the run's folder."""
    for end in (transfer.BucketedWeightSender, transfer.BucketedWeightReceiver):
        end.__init__ = _meeting_in_private(end.__init__)


def _meeting_in_private(original: Any) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, zmq_handle: str, *args: Any, **kwargs: Any) -> None:
        original(self, private_handle(zmq_handle), *args, **kwargs)

    return __init__

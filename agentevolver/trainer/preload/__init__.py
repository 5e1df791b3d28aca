"""Starting Python processes by forking one that has imported everything already.

A run has a dozen Python processes that import torch, transformers, verl, Ray and vLLM, 7 to 14 seconds of CPU time
each. With `ray.preload` one process, the *nursery*, imports them once while Ray starts; the main job, Ray's workers and
vLLM's engines are forks of it. It needs a machine whose accelerator is not touched by importing (a CPU): a CUDA context
does not survive a fork.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

SOCKET = "AGENTEVOLVER_NURSERY"
"""The environment variable with the nursery's socket, which lies beside the executable `python` that asks it."""
CLIENT = Path(__file__).with_name("client.py")


def executable_of(socket: str | Path) -> Path:
    """Return the executable that asks the nursery at this socket."""
    return Path(socket).with_name("python")


def python_of(env: Mapping[str, str]) -> str:
    """Return the Python for processes with this environment: the nursery's, if there is one."""
    return str(executable_of(env[SOCKET])) if SOCKET in env else sys.executable


def write_executable(socket: str | Path) -> None:
    """Write the executable. Without a nursery it is the Python that runs this."""
    path = executable_of(socket)
    # A shell's line, not `#!python script`: the kernel allows one argument there.
    command = f'exec "{sys.executable}" -I -S "{CLIENT}" "{sys.executable}" "{socket}" "$@"'
    path.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
    path.chmod(0o700)

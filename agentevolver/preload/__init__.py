"""Starting Python processes by forking one that has imported everything already.

A run has a dozen Python processes that import torch, transformers, verl, Ray and vLLM, 7 to 14 seconds of CPU time
each, most of them one after the other. With `ray.preload` one process, the *nursery*, imports them once, while Ray
starts; the main job, the player of frozen policies, Ray's workers and vLLM's engines are forks of it. It needs a
machine whose accelerator is not touched by importing (a CPU): a CUDA context does not survive a fork.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

SOCKET = "AGENTEVOLVER_NURSERY"
"""The environment variable with the nursery's socket; its folder holds the executable `python` that asks it for a
process."""
CLIENT = Path(__file__).with_name("client.py")


def executable_of(socket: str | Path) -> Path:
    """Return where the executable is that asks the nursery at this socket."""
    return Path(socket).with_name("python")


def python_of(env: Mapping[str, str]) -> str:
    """Return the executable that processes with such an environment start Python by: the nursery's where there is one,
    else that which runs this."""
    return str(executable_of(env[SOCKET])) if SOCKET in env else sys.executable


def write_executable(socket: str | Path) -> None:
    """Write it. It works without the nursery too, as the Python that runs this."""
    path = executable_of(socket)
    # A shell's line, not `#!python script`: the kernel allows one argument there.
    command = f'exec "{sys.executable}" -I -S "{CLIENT}" "{sys.executable}" "{socket}" "$@"'
    path.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
    path.chmod(0o700)

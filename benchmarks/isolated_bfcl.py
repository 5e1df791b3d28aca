"""BFCL in a process for each instance. It is hosted shared; this is what the benchmark compares that with.

The package is loaded with this module, so that the processes are forked with it and share its memory.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from env_service.environments.bfcl.env import BfclEnv
from env_service.environments.bfcl.package import load_package

load_package()


class IsolatedBfcl(BfclEnv):
    """The same tasks, a process each."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "isolated"

"""PocketWorld in a process for each instance. The world itself is hosted shared; this is what the benchmark compares
that with."""

from __future__ import annotations

from typing import ClassVar, Literal

from env_service.environments.pocket.env import PocketEnv


class IsolatedPocket(PocketEnv):
    """The same world, a process each."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "isolated"

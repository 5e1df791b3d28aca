"""What is started: descriptions of services and of the main job, as data. Making one starts nothing."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass(frozen=True)
class JobSpec:
    """A process that runs until it has done its work: the main job."""

    name: str
    argv: tuple[str, ...]
    cwd: Path
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()
    """Variables of the launcher that it does not inherit."""
    grace_s: float = 20.0
    """Seconds between SIGTERM and SIGKILL when it is stopped."""
    launcher_lost: signal.Signals = signal.SIGKILL
    """What the kernel sends it when the launcher is killed."""

    @property
    def command(self) -> str:
        """The command as one would type it."""
        return shlex.join(self.argv)


@dataclass(frozen=True)
class ServiceSpec(JobSpec):
    """A process that runs as long as the run does, and is up when its health URLs answer."""

    title: str = ""
    """What it is, for a person: its address, what it serves."""
    health_urls: tuple[str, ...] = ()
    ready_timeout_s: float = 600.0
    grace_s: float = 10.0
    first_tries: int = 1
    """How often its first start is tried before the run is given up."""
    restarts: int = 0
    """How often it is started again after it died; the count begins anew when it has been well for `steady_s`."""
    steady_s: float = 600.0
    backoff_s: tuple[float, ...] = BACKOFF_S
    shared: bool = False
    """Used, and not started nor stopped, when its health URLs answer already (and, if it says who it is, this checkout
    has started it)."""
    says_who: bool = False
    """Whether its health URL says which launch has started it; it is up when that is this one."""
    needed: bool = True
    """Whether the run ends when it dies for good."""
    advice: str = ""
    """What to do when it does not come up."""

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait before the restart number `attempt` (from 0)."""
        return self.backoff_s[min(attempt, len(self.backoff_s) - 1)] if self.backoff_s else 0.0

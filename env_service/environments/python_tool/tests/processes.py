"""Looking at processes from the tests."""

from __future__ import annotations

import time
from pathlib import Path

import psutil


def family(launcher_pid: int) -> list[psutil.Process]:
    """The launcher and the interpreter below it."""
    launcher = psutil.Process(launcher_pid)
    return [launcher, *launcher.children(recursive=True)]


def interpreter_pid(launcher_pid: int) -> int:
    """The host's process id of the interpreter."""
    children = psutil.Process(launcher_pid).children()
    assert len(children) == 1
    return int(children[0].pid)


def gone(processes: list[psutil.Process], within_s: float = 5.0) -> bool:
    """Whether all processes end in time; a zombie counts as there."""
    deadline = time.monotonic() + within_s
    while any(process.is_running() and Path(f"/proc/{process.pid}").exists() for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True

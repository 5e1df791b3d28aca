"""Errors of the launcher. The message is one line for a person: what is wrong, the value seen, what to do."""

from __future__ import annotations

import signal


class LaunchError(RuntimeError):
    """The run cannot start or go on because of something that happened."""

    exit_code = 1


class UsageError(LaunchError):
    """The run cannot start because of what was asked for."""

    exit_code = 2


class Interrupted(Exception):
    """A signal asked the launcher to stop."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """The shell's convention for a process that a signal ended."""
        return 128 + int(self.number)

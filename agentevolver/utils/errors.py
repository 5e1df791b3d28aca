"""Errors that end a run or keep it from starting. Each message is one line for the user."""

from __future__ import annotations

import signal


class ConfigError(ValueError):
    """The message names the key or file, the value, and what to write instead."""


class LaunchError(RuntimeError):
    """The run cannot start or continue."""

    exit_code = 1


class UsageError(LaunchError):
    """The user asked for something that cannot be run."""

    exit_code = 2


class NothingMeasured(LaunchError):
    """The run finished, but no action of the policy was carried out."""

    exit_code = 3


class Interrupted(Exception):
    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number

    @property
    def exit_code(self) -> int:
        # The code that shells report for a process ended by a signal.
        return 128 + int(self.number)


class TrainingFailed(RuntimeError):
    """The trainer failed; the message is the cause and names the log."""


def last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__

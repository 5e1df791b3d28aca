"""Errors that end a run, or keep it from starting. Each message is one line for a person: what is wrong, the value
seen, what to do."""

from __future__ import annotations

import signal


class ConfigError(ValueError):
    """The configuration cannot be run. The message is one line:
    which key or file, the value seen, what to write instead."""


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


class TrainingFailed(RuntimeError):
    """The trainer ended with an error; the message is its cause and says where the rest is written."""


def last_line(error: BaseException) -> str:
    """Return the last line of an error's text that is not empty, its type's name if there is none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__

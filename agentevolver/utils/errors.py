"""Errors that end a run or keep it from starting. Each message is one line for the user."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable


class ConfigError(ValueError):
    """The message names the key or file, the value, and what to write instead."""


def all_of(*checks: Callable[[], object]) -> None:
    """Run checks. Raises ConfigError with the problems of all that fail."""
    problems = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("; ".join(problems))


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


def short_of_memory(text: str) -> str | None:
    """Return which process used how much, if Ray (2.60) says that it ended one because memory was short, else None."""
    full = re.search(r"Memory on the node .*? was ([\d.]+)GB(?: used)? / ([\d.]+)GB", text, re.DOTALL)
    if full is None:
        return None
    table = re.findall(r"^(\d+)\s+([\d.]+)\s+(\S.*)$", text[full.end() :], re.MULTILINE)
    users = ", ".join(f"{name[:40].strip()} (pid {pid}) {size} GB" for pid, size, name in table[:6])
    return (
        f"the machine's memory is short, {full[1]} of {full[2]} GB are used: {users}; end other programs, or train "
        "with less (data.train_batch_size, actor_rollout_ref.actor.ppo_max_token_len_per_gpu)"
    )


def last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__

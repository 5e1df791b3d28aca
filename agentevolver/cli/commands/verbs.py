"""Shared parts of the command line's verbs."""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import NoReturn

from agentevolver.utils.errors import ConfigError, LaunchError, UsageError, last_line

PROG = "agentevolver"


class VerbParser(argparse.ArgumentParser):
    """ArgumentParser that raises UsageError instead of exiting."""

    def __init__(self, verb: str, description: str) -> None:
        super().__init__(prog=f"{PROG} {verb}", description=description, allow_abbrev=False)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse arguments in any order. Raises UsageError."""
        # `parse_args` (Python 3.11) takes no key=value after an option if the positional is `nargs="*"`.
        return self.parse_intermixed_args(list(arguments))

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def carried_out(verb: str, work: Callable[[], int]) -> int:
    """Run a verb and return its exit code: 2 for a usage error, 1 for a failure. Errors are printed as one line."""
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        # Warnings of torch and transformers would break the output up.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work()
    except LaunchError as error:
        return refused(verb, str(error), error.exit_code)
    except ConfigError as error:
        return refused(verb, str(error), UsageError.exit_code)
    except OSError as error:
        return refused(verb, last_line(error), LaunchError.exit_code)


def refused(verb: str, message: str, code: int) -> int:
    print(f"{PROG} {verb}: error: {' '.join(message.split())}", file=sys.stderr)
    return code


def listed(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def positive(text: str) -> int:
    """Convert to an integer of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number

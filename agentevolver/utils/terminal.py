"""Output to a terminal: control characters in what worlds, models and files say are shown and never obeyed.

`guard_output` covers `print` and logging; rich, which writes control sequences of its own, has `utils.rich_console`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

# C0 and C1 but tab and line feed, marks that turn the direction of text round, separators of lines, lone surrogates.
_CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str) -> str:
    """Return a text with its control characters as visible escapes such as `\\x1b`; CR LF becomes LF."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


class Guarded:
    """A text stream that shows control characters; `stream` is the stream behind it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        # A progress bar begins with a carriage return: its next state is a line of its own.
        start = "\n" if text.startswith("\r") and not text.startswith("\r\n") else ""
        self.stream.write(start + shown(text[len(start) :]))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def guard_output() -> None:
    """Show control characters in all that this process prints to stdout and stderr."""
    for name in ("stdout", "stderr"):
        if not isinstance(getattr(sys, name), Guarded):
            setattr(sys, name, Guarded(getattr(sys, name)))

"""Rich's console and markup with the control characters of foreign texts shown (`utils.terminal`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
import rich.markup
from rich.segment import Segment

from agentevolver.utils.terminal import Guarded, shown


def escape(text: str) -> str:
    """Return a text for rich's markup, its control characters visible and its brackets literal."""
    return rich.markup.escape(shown(text))


class TerminalConsole(rich.console.Console):
    """A rich console that prints control characters as visible escapes and drops links."""

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            # A link in markup is a control sequence with a foreign address.
            style = segment.style.update_link() if segment.style and segment.style.link else segment.style
            yield segment if segment.control else Segment(shown(segment.text), style)

    @property
    def file(self) -> Any:  # rich's own colours are written past a guarded stream
        found = super().file
        return found.stream if isinstance(found, Guarded) else found

    @file.setter
    def file(self, new_file: Any) -> None:
        self._file = new_file

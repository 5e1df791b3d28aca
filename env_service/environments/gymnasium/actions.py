"""An action out of a model's text.

Accepted: the name or the number of an action, alone or behind `action:`; for a text action space, the text behind
    `action:`, or
the whole message. Anything else becomes an `ActionError` whose text teaches the form; nothing is guessed and nothing
raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_LABELLED = re.compile(r"^[ \t*_`>-]*action[ \t*_`]*[:=](.*)$", re.IGNORECASE | re.MULTILINE)
_EDGES = " \t\r\n.,;!?*_`'\"()[]<>"
_MAX_QUOTED = 80


@dataclass(frozen=True)
class ActionError:
    """What the agent reads instead of an observation."""

    text: str


@dataclass(frozen=True)
class NamedActions:
    """The actions of a discrete space: numbers `start`, `start` + 1, ..., each with a name where the world gives
    names."""

    names: tuple[str, ...]
    start: int = 0

    def form(self) -> str:
        """Return how to write an action, with the list of them."""
        listed = ", ".join(
            f"{number} {name}" if name != str(number) else name for number, name in enumerate(self.names, self.start)
        )
        return f"Write one line `action: <name or number>`. The actions are: {listed}."

    def parse(self, text: str) -> int | ActionError:
        """Return the number of the action that the text names."""
        found = _spoken(text)
        if isinstance(found, ActionError):
            return ActionError(f"{found.text} {self.form()}")
        word = found.strip(_EDGES).lower()
        for number, name in enumerate(self.names, self.start):
            if word in (name.lower(), str(number), f"{number} {name.lower()}"):
                return number
        return ActionError(f"{_quoted(found)} is not an action. {self.form()}")


@dataclass(frozen=True)
class TextActions:
    """The actions of a text space: every text that the space contains."""

    space: Any

    def form(self) -> str:
        """Return how to write an action."""
        characters = "".join(sorted(self.space.character_set))
        return (
            f"Write one line `action: <text>`, {self.space.min_length} to {self.space.max_length} characters long, "
            f"of these characters: {characters}"
        )

    def parse(self, text: str) -> str | ActionError:
        """Return the text, if the space contains it."""
        found = _spoken(text)
        if isinstance(found, ActionError):
            return ActionError(f"{found.text} {self.form()}")
        word = found.strip()
        if word in self.space:
            return word
        return ActionError(f"{_quoted(word)} is not an action. {self.form()}")


def farewell(text: str) -> str | None:
    """Return the answer of a message that ends an episode without a goal (`action: done [ANSWER]`), "" for none; None
    if it does not."""
    found = _spoken(text)
    if isinstance(found, ActionError):
        return None
    word, _, answer = found.strip().partition(" ")
    return answer.strip(" .,;!?*_`'\"") if word.strip(_EDGES).lower() == "done" else None


def _spoken(text: str) -> str | ActionError:
    """Return the part of a message that is meant as the action, without any reasoning before it."""
    text = text.rpartition("</think>")[2].partition("<think>")[0]
    labelled = [part.strip() for part in _LABELLED.findall(text)]
    if len(labelled) > 1:
        return ActionError(f"The message names {len(labelled)} actions; take one at a time.")
    return labelled[0] if labelled else text.strip()


def _quoted(text: str) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8")
    return f"`{text}`" if len(text) <= _MAX_QUOTED else f"`{text[:_MAX_QUOTED]}…`"

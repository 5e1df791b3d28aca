"""The policy's commands about its own context, read from what it said.

One command a line (or after a semicolon): `keep m1 m2`, `remove m3`, `compress m4: shorter text`. In an action they
    stand between
`<context>` and `</context>`; an answer to the question for them may leave the tags out. Lines of another form are left
out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_BLOCK = re.compile(r"<context>(.*?)(?:</context>|\Z)", re.DOTALL)
# The length of a number is bounded: a reply may be one endless row of digits, which `int` refuses.
_COMMAND = re.compile(r"[\s*\-]*(keep|remove|compress)\s+((?:\[?m[0-9]{1,9}\]?[\s,]*)+)(?::\s*(.*))?", re.IGNORECASE)
_BREAK = re.compile(r"\n|;(?=\s*(?:keep|remove|compress)\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Command:
    """What to do with which messages (their numbers); `text` is what a compressed one shall say."""

    verb: Literal["keep", "remove", "compress"]
    numbers: tuple[int, ...]
    text: str = ""


def without_blocks(text: str) -> str:
    """Return a reply without its command blocks; a text that has none is returned as it is."""
    rest, count = _BLOCK.subn("", text)
    return rest.strip() if count else text


def commands_of(text: str, *, asked: bool = False) -> list[Command]:
    """Return the commands of a reply, in order; `asked` says that the whole of it may be commands."""
    blocks = _BLOCK.findall(text) or ([text] if asked else [])
    found = []
    for line in _BREAK.split("\n".join(blocks)):
        match = _COMMAND.fullmatch(line.strip())
        if match is None:
            continue
        verb, numbers, said = (
            match[1].lower(),
            tuple(int(n) for n in re.findall("[0-9]+", match[2])),
            (match[3] or "").strip(),
        )
        if verb == "compress" and (not said or len(numbers) != 1):
            continue
        found.append(Command(verb, numbers, said))  # type: ignore[arg-type]
    return found

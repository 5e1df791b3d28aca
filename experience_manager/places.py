"""Places where experience holds, and which of them a text names.

A scope is the text that stores, dumps and people hold: one place, or several with `|` between them, or "" for
everywhere. A place is named by a text that holds its words one after the other, whatever case and punctuation; where a
script has no spaces, each character is a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from agentevolver.utils.scripts import spaced

Mask = NDArray[np.bool_]
BETWEEN = "|"
# A scope that would name more places than this holds everywhere.
MAX_PLACES = 32
EVERYWHERE = " "
"""What a scope that names no place comes to: every text names it."""


def places_in(scope: str) -> tuple[str, ...]:
    """Return the places of a scope as they are written, none if it stands for everywhere."""
    return tuple(place for part in scope.split(BETWEEN) if (place := part.strip()))


def places_of(scope: str) -> frozenset[str]:
    """Return the places of a scope as they are compared; `EVERYWHERE` if it names none."""
    return frozenset(map(_words, places_in(scope) or ("",)))


def covers(scope: str, other: str) -> bool:
    """Whether a scope holds each place of another, and holds everywhere only if that does, too."""
    return places_of(scope) >= places_of(other)


def union(scope: str, other: str) -> str:
    """Return the scope of what holds in the places of two: "" if one of them does, or if they are more than
    `MAX_PLACES`."""
    if covers(scope, other):
        return scope
    if EVERYWHERE in places_of(scope) | places_of(other):
        return ""
    named = {_words(place): place for place in (*places_in(other), *places_in(scope))}
    written = [named.pop(_words(place)) for place in (*places_in(scope), *places_in(other)) if _words(place) in named]
    return f" {BETWEEN} ".join(written) if len(written) <= MAX_PLACES else ""


def mentions(text: str, place: str) -> bool:
    """Whether a text names a place; every text names ""."""
    return _words(place) in _words(text)


class Scopes:
    """Scopes by number, and which of them name a place."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._codes_at: dict[str, list[int]] = {}
        self._lengths: set[int] = set()

    def code(self, scope: str) -> int:
        """Return a scope's number, 0, 1, ... in the order of first asking."""
        if (known := self._codes.get(scope)) is not None:
            return known
        code = self._codes[scope] = len(self._codes)
        for place in places_of(scope):
            self._codes_at.setdefault(place, []).append(code)
            self._lengths.add(len(place.split()))
        return code

    def covering(self, scope: str) -> Mask:
        """Return which scopes hold all places of one, (number of scopes); everywhere only if it does."""
        return self._mask(set.intersection(*(set(self._codes_at.get(place, ())) for place in places_of(scope))))

    def named_by(self, text: str) -> Mask:
        """Return which scopes have a place that a text names, (number of scopes); takes no longer for many scopes than
        for few."""
        words = _words(text).split()
        spans = {f" {' '.join(words[i : i + n])} " for n in self._lengths if n for i in range(len(words) - n + 1)} | {
            EVERYWHERE
        }
        return self._mask(code for place in spans & self._codes_at.keys() for code in self._codes_at[place])

    def _mask(self, codes: Iterable[int]) -> Mask:
        mask = np.zeros(len(self._codes), dtype=np.bool_)
        mask[list(codes)] = True
        return mask


def _words(text: str) -> str:
    """Return the words of a text between single spaces, so that one text holds another in whole words iff it is a
    substring."""
    words = re.findall(r"\w+", spaced(text.casefold()))
    return f" {' '.join(words)} " if words else EVERYWHERE

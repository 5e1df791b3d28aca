"""Lexical deduplication of queries: the Jaccard similarity of their word sets, exact."""

from __future__ import annotations

import functools
import re
import unicodedata
from array import array
from dataclasses import dataclass

import numpy as np

from agentevolver.utils.scripts import UNSPACED, marks

_WORD = re.compile(r"[^\W_]+")
# Characters per token in scripts without spaces: with pairs, one changed word changes about as many tokens in Chinese
# as in English.
GRAM = 2


def words(text: str) -> frozenset[str]:
    """Return the case-folded words of a text (NFKC); scripts without spaces give character pairs."""
    if text.isascii():
        return frozenset(_WORD.findall(text.casefold()))
    folded, found = unicodedata.normalize("NFKC", text).casefold(), set[str]()
    for unspaced, word in _runs().findall(folded):
        found.update((unspaced[i : i + GRAM] for i in range(max(1, len(unspaced) - GRAM + 1))) if unspaced else (word,))
    return frozenset(found)


@functools.cache
def _runs() -> re.Pattern[str]:
    # Group 1: a run of a script without spaces; group 2: of another one. Combining marks belong to their letter.
    letter = r"[^\W_]"
    return re.compile(f"((?:(?=[{UNSPACED}]){letter}[{marks()}]*)+)|((?:(?![{UNSPACED}]){letter}[{marks()}]*)+)")


@dataclass(frozen=True, slots=True)
class SimilarEntry:
    row: int  # number in the order of adding
    similarity: float


class LexicalIndex:
    """Finds the entry whose word set is most similar to a query's (Jaccard), if that reaches `threshold`."""

    def __init__(self, threshold: float) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"a Jaccard threshold lies in (0, 1], got {threshold}")
        self._threshold = threshold
        self._sizes = array("i")  # words of each row
        self._having: dict[str, array[int]] = {}  # rows by word

    def find(self, text: str) -> SimilarEntry | None:
        """Return a most similar entry at or above the threshold, or None. A text without words matches nothing."""
        found = words(text)
        having = [np.frombuffer(self._having[word], np.int32) for word in found if word in self._having]
        if not having:
            return None
        sizes = np.frombuffer(self._sizes, np.int32)
        common = np.bincount(np.concatenate(having), minlength=len(sizes))
        similarity = common / (len(found) + sizes - common)
        rows = np.flatnonzero(similarity == similarity.max())
        # Of equally similar ones the one with the fewest words, and of these the oldest.
        row = int(rows[sizes[rows].argmin()])
        return SimilarEntry(row, float(similarity[row])) if similarity[row] >= self._threshold else None

    def add(self, text: str) -> None:
        row, found = len(self._sizes), words(text)
        self._sizes.append(len(found))
        for word in found:
            self._having.setdefault(word, array("i")).append(row)

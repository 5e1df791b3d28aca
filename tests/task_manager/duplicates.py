"""Joins over whole lists of texts and vectors: how the indices of `task_manager.dedup` are tested and measured.

`pairwise_duplicates` is the definition, quadratic.
"""

from __future__ import annotations

from task_manager.dedup import LexicalIndex, SimilarEntry, words


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Return |one & other| / |one | other|, and 0 if both are empty."""
    common = len(one & other)
    return common / (len(one) + len(other) - common) if common else 0.0


def lexical_duplicates(texts: list[str], threshold: float) -> list[SimilarEntry | None]:
    """Return for each text the earlier kept text that it duplicates, or None if it is kept itself (first come, first
    kept)."""
    index = LexicalIndex(threshold, texts)
    numbers: list[int] = []
    found: list[SimilarEntry | None] = []
    for position, text in enumerate(texts):
        match = index.find(text)
        if match is None:
            index.add(text)
            numbers.append(position)
            found.append(None)
        else:
            found.append(SimilarEntry(numbers[match.row], match.similarity))
    return found


def pairwise_duplicates(texts: list[str], threshold: float) -> list[SimilarEntry | None]:
    """The same by comparing each text with every kept one before it: the definition, quadratic, for tests and
    benchmarks."""
    sets = [words(text) for text in texts]
    kept: list[int] = []
    found: list[SimilarEntry | None] = []
    for position, mine in enumerate(sets):
        best: SimilarEntry | None = None
        for other in kept:
            similarity = jaccard(mine, sets[other])
            if similarity >= threshold and (best is None or similarity > best.similarity):
                best = SimilarEntry(other, similarity)
        found.append(best)
        if best is None:
            kept.append(position)
    return found

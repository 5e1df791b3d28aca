"""Joins over whole lists of texts and vectors: how the indices of `task_manager.dedup` are tested and measured.

`pairwise_duplicates` is the definition, quadratic.
"""

from __future__ import annotations

import numpy as np

from agentevolver.embeddings import Vectors
from task_manager.dedup import LexicalIndex, SemanticIndex, SimilarEntry, words

# Vectors that are compared with the index at once.
BLOCK = 2048


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


def semantic_duplicates(vectors: Vectors, threshold: float) -> list[SimilarEntry | None]:
    """Return for each unit vector the earlier kept one that it duplicates, or None if it is kept itself (first come,
    first kept).

    `vectors` is (n, d); a duplicate has a cosine of at least `threshold`.
    """
    kept: list[int] = []
    found: list[SimilarEntry | None] = []
    index = SemanticIndex(vectors.shape[1] if vectors.ndim == 2 else 1)
    for start in range(0, len(vectors), BLOCK):
        block = np.ascontiguousarray(vectors[start : start + BLOCK], dtype=np.float32)
        nearest = index.nearest_of_each(block)
        matches = [
            SimilarEntry(kept[m.row], m.similarity) if m is not None and m.similarity >= threshold else None
            for m in nearest
        ]
        fresh = [place for place, match in enumerate(matches) if match is None]
        newly_kept = []
        for place, match in zip(fresh, _within(block[fresh], threshold), strict=True):
            if match is None:
                newly_kept.append(start + place)
            else:
                matches[place] = SimilarEntry(start + fresh[match.row], match.similarity)
        index.add(vectors[newly_kept])
        kept += newly_kept
        found += matches
    return found


def _within(block: Vectors, threshold: float) -> list[SimilarEntry | None]:
    """The same among the rows of one block."""
    cosines = block @ block.T
    is_kept = np.zeros(len(block), dtype=bool)
    found: list[SimilarEntry | None] = []
    for i in range(len(block)):
        row = np.where(is_kept[:i], cosines[i, :i], -2.0)
        best = int(row.argmax()) if i else -1
        is_kept[i] = best < 0 or row[best] < threshold
        found.append(None if is_kept[i] else SimilarEntry(best, float(row[best])))
    return found

"""Cosine similarity of queries by their embeddings, exact: FAISS's flat index, in blocks.

An inexact index would be faster beyond a million tasks; at 100,000 comparing all of them takes less than building one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from agentevolver.embeddings import Vectors
from task_manager.filters.lexical import Match

BLOCK = 2048


@contextmanager
def _one_thread() -> Iterator[None]:
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


class SemanticIndex:
    """Finds the nearest entries of a unit vector; entries are numbered in the order of adding."""

    def __init__(self, dimension: int) -> None:
        import faiss

        self._index = faiss.IndexFlatIP(dimension)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def add(self, vectors: Vectors) -> None:
        """Add (n, d) unit vectors."""
        self._index.add(np.ascontiguousarray(vectors, dtype=np.float32))

    def nearest(self, vector: Vectors, k: int = 1) -> list[Match]:
        """Return the k nearest entries of one vector (d,), nearest first."""
        return self._search(vector[None, :], k)[0]

    def nearest_of_each(self, vectors: Vectors) -> list[Match | None]:
        """Return the nearest entry of each of (n, d) vectors; None where there are no entries."""
        return [found[0] if found else None for found in self._search(vectors, 1)]

    def _search(self, vectors: Vectors, k: int) -> list[list[Match]]:
        k = min(k, len(self))
        if k == 0:
            return [[] for _ in vectors]
        with _one_thread():
            cosines, rows = self._index.search(np.ascontiguousarray(vectors, dtype=np.float32), k)
        return [
            [Match(int(r), float(c)) for r, c in zip(*pair, strict=True)] for pair in zip(rows, cosines, strict=True)
        ]


def semantic_duplicates(vectors: Vectors, threshold: float) -> list[Match | None]:
    """Return for each unit vector the earlier kept one that it duplicates, or None if it is kept itself (first come,
    first kept).

    `vectors` is (n, d); a duplicate has a cosine of at least `threshold`.
    """
    kept: list[int] = []
    found: list[Match | None] = []
    index = SemanticIndex(vectors.shape[1] if vectors.ndim == 2 else 1)
    for start in range(0, len(vectors), BLOCK):
        block = np.ascontiguousarray(vectors[start : start + BLOCK], dtype=np.float32)
        nearest = index.nearest_of_each(block)
        matches = [
            Match(kept[m.row], m.similarity) if m is not None and m.similarity >= threshold else None for m in nearest
        ]
        fresh = [place for place, match in enumerate(matches) if match is None]
        newly_kept = []
        for place, match in zip(fresh, _within(block[fresh], threshold), strict=True):
            if match is None:
                newly_kept.append(start + place)
            else:
                matches[place] = Match(start + fresh[match.row], match.similarity)
        index.add(vectors[newly_kept])
        kept += newly_kept
        found += matches
    return found


def _within(block: Vectors, threshold: float) -> list[Match | None]:
    """The same among the rows of one block."""
    cosines = block @ block.T
    is_kept = np.zeros(len(block), dtype=bool)
    found: list[Match | None] = []
    for i in range(len(block)):
        row = np.where(is_kept[:i], cosines[i, :i], -2.0)
        best = int(row.argmax()) if i else -1
        is_kept[i] = best < 0 or row[best] < threshold
        found.append(None if is_kept[i] else Match(best, float(row[best])))
    return found

"""Exact nearest neighbours among unit vectors, by the inner product."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]


def nearest(similarities: Vectors, k: int, allowed: Mask) -> tuple[Rows, Vectors]:
    """Return the k allowed rows with the greatest similarities (n), best first, and their similarities."""
    k = min(k, int(np.count_nonzero(allowed)))
    values = np.where(allowed, np.nan_to_num(similarities, nan=-2.0), np.float32(-2.0))
    # Equal ones in the order of adding, so that prompts are reproducible.
    rows = np.flatnonzero(values >= np.partition(values, len(values) - k)[len(values) - k]) if k else np.arange(0)
    best = rows[np.argsort(-values[rows], kind="stable")][:k]
    return best, values[best]


class VectorIndex:
    """Unit vectors, numbered in the order of adding. Rows are only appended; callers mask dead ones."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._rows: Vectors = np.zeros((16, dimension), dtype=np.float32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, vectors: Vectors) -> None:
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise ValueError(f"vectors of shape {vectors.shape} do not go into an index of dimension {self.dimension}")
        count = self._count + len(vectors)
        if count > len(self._rows):
            grown = np.zeros((max(count, 2 * len(self._rows)), self.dimension), dtype=np.float32)
            grown[: self._count] = self.vectors()
            self._rows = grown
        self._rows[self._count : count] = vectors
        self._count = count

    def vectors(self) -> Vectors:
        """Return all rows (n, d) as a view."""
        return self._rows[: self._count]

    def search(self, query: Vectors, k: int, allowed: Mask) -> tuple[Rows, Vectors]:
        """Return the allowed rows nearest to one query (d), best first, and their similarities."""
        return nearest(self.vectors() @ query, k, allowed)

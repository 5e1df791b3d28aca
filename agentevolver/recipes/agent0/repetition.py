"""Repetition: the share of a batch of proposals that is similar to each of them, by exact BLEU clusters. A batch of
2,048 texts takes a second or two.

The similarity of texts i < j is sentence BLEU-4 with hypothesis i and reference j: whitespace tokens, uniform weights,
0.1 in place of a count of 0 (Chen and Cherry's smoothing 1), 0 if no token is shared. The distance is 1 - BLEU. Average
linkage joins clusters while their distance is below 0.5. An empty text is similar to nothing, itself included.

Sparse matrix products compare all pairs. Comparing only pairs that share a 4-gram gives the same clusters up to ties
and was slower in most batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import csr_array

THRESHOLD = 0.5
_ORDERS = (1, 2, 3, 4)

Floats = npt.NDArray[np.float64]


def distances(texts: Sequence[str]) -> Floats:
    """Return 1 - BLEU of all pairs i < j, row by row of the upper triangle (B (B - 1) / 2).

    The product of the four precisions is computed from integers (each times ten) and its fourth root by two square
    roots, so that a BLEU of exactly 0.5 is 0.5.
    """
    tokens = [text.split() for text in texts]
    lengths = np.array([len(row) for row in tokens], dtype=np.float64)
    first, second = np.triu_indices(len(texts), 1)
    matched = np.ones(len(first))
    totals = np.ones(len(texts))
    alike = np.ones(len(first), dtype=bool)
    for n in _ORDERS:
        table = _table(tokens, n)
        shared = (table @ table.T).toarray()[first, second]
        if n == 1:
            alike = shared > 0
        matched *= np.where(shared > 0, 10.0 * shared, 1.0)
        totals *= 10.0 * np.maximum(lengths - (n - 1), 1.0)
    precision = np.sqrt(np.sqrt(matched / totals[first]))
    brevity = np.exp(np.minimum(0.0, 1.0 - lengths[second] / np.maximum(lengths[first], 1.0)))
    found: Floats = 1.0 - np.where(alike, precision * brevity, 0.0)
    return found


def linked(apart: Floats) -> list[int]:
    """Return the cluster number of each text (B) from the distances of all pairs (B (B - 1) / 2, at least one)."""
    numbers = fcluster(linkage(apart, "average"), np.nextafter(THRESHOLD, 0.0), "distance")
    order = {number: i for i, number in enumerate(dict.fromkeys(numbers.tolist()))}
    return [order[number] for number in numbers.tolist()]


def clusters(texts: Sequence[str]) -> list[int]:
    return linked(distances(texts)) if len(texts) > 1 else [0] * len(texts)


def shares(texts: Sequence[str]) -> list[float]:
    """Return (B) the fraction of the batch in each text's cluster. A malformed text is "": it counts in B but joins no
    other text's cluster."""
    numbers = clusters(texts)
    sizes = Counter(numbers)
    return [sizes[number] / len(texts) for number in numbers]


def _table(tokens: Sequence[Sequence[str]], n: int) -> csr_array:
    """Return (B, G): one column for the first occurrence of an n-gram in a text, another for the second, and so on.

    The product of two rows is the number of shared n-grams, each counted as often as in the text with fewer.
    """
    columns: dict[tuple[tuple[str, ...], int], int] = {}
    rows: list[int] = []
    places: list[int] = []
    for i, text in enumerate(tokens):
        for gram, count in Counter(zip(*(text[k:] for k in range(n)), strict=False)).items():
            for level in range(count):
                rows.append(i)
                places.append(columns.setdefault((gram, level), len(columns)))
    ones = np.ones(len(rows), dtype=np.int32)
    return csr_array((ones, (rows, places)), shape=(len(tokens), max(len(columns), 1)))

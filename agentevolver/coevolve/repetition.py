"""How much of a batch of proposals is like each of them: clusters by BLEU, exactly, at 2,048 texts in seconds.

The similarity of texts i < j is sentence BLEU-4 with i as the hypothesis and j as the reference: tokens between white
space, uniform weights, 0.1 in the place of a count of 0 (Chen and Cherry's smoothing 1), 0 if no token is shared. Their
distance is 1 - BLEU. Clusters are joined by average linkage while their distance is below 0.5; at exactly 0.5 they are
two. A text without a token is like nothing, itself included.

Clusters of average distance below 0.5 hold a pair below 0.5, so no cluster reaches beyond a component of the graph of
such pairs: linkage is done in each component alone. And such a pair shares a 4-gram, or a trigram where the hypothesis
has no more than 4 tokens: of others BLEU is at most (0.1 / 2)^(1/4) = 0.473 and (0.1 * 0.1)^(1/4) = 0.316. So most
pairs are never compared, and the clusters are those of comparing all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import coo_array, csr_array, triu
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import squareform

THRESHOLD = 0.5
_ORDERS = (1, 2, 3, 4)
_SHORT = 4
# Pairs that are compared at once: bounds the memory, some 100 MB at 50 tokens a text.
_CHUNK = 1 << 16

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Grams:
    """The n-grams of texts, counted.

    `tables[n - 1]` (B, G) has a column of ones for the first occurrence of an n-gram in a text, another for the second,
    and so on: the product of two rows is the number of n-grams that they share, each counted as often as in the poorer.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        tokens = [text.split() for text in texts]
        self.lengths: Ints = np.array([len(row) for row in tokens], dtype=np.int64)
        self.tables = [_table(tokens, n) for n in _ORDERS]

    def pairs(self, first: Ints, second: Ints) -> Floats:
        """Return BLEU (M) of the texts `first` (M) against the references `second` (M)."""
        parts = []
        for start in range(0, len(first), _CHUNK):
            i, j = first[start : start + _CHUNK], second[start : start + _CHUNK]
            shared = np.stack([np.asarray(table[i].multiply(table[j]).sum(axis=1)).ravel() for table in self.tables])
            parts.append(bleu(shared, self.lengths[i], self.lengths[j]))
        return np.concatenate(parts) if parts else np.zeros(0)

    def distances(self, members: Ints) -> Floats:
        """Return the distances (m, m) between some of the texts, whose numbers are in ascending order; 0 on the
        diagonal."""
        i, j = np.triu_indices(len(members), 1)
        shared = np.stack([(own @ own.T).toarray()[i, j] for own in (table[members] for table in self.tables)])
        lengths = self.lengths[members]
        distances = np.zeros((len(members), len(members)))
        distances[i, j] = 1.0 - bleu(shared, lengths[i], lengths[j])
        return distances + distances.T

    def close(self) -> tuple[Ints, Ints]:
        """Return the pairs i < j whose distance is below the threshold."""
        fours, threes = self.tables[3], self.tables[2]
        short = np.flatnonzero(self.lengths <= _SHORT)
        found = coo_array(triu(fours @ fours.T, k=1))
        brief = coo_array(threes[short] @ threes.T)
        first = np.concatenate([found.row.astype(np.int64), short[brief.row]])
        second = np.concatenate([found.col.astype(np.int64), brief.col.astype(np.int64)])
        # The brevity penalty alone leaves less of those whose reference is too long; 1e-9 is for its rounding.
        ratio = self.lengths[second] / self.lengths[first]
        may = (first < second) & (np.exp(np.minimum(0.0, 1.0 - ratio)) > 1.0 - THRESHOLD - 1e-9)
        codes = np.unique(first[may] * len(self.lengths) + second[may])
        first, second = codes // len(self.lengths), codes % len(self.lengths)
        below = 1.0 - self.pairs(first, second) < THRESHOLD
        return first[below], second[below]


def bleu(shared: npt.NDArray[np.integer], hypothesis: Ints, reference: Ints) -> Floats:
    """Return BLEU-4 (M) of n-grams shared (4, M) by texts of so many tokens.

    The product of the four precisions is made of integers, ten times each, and its fourth root by two square roots, so
    that a BLEU of exactly 0.5 is 0.5.
    """
    totals = np.maximum(hypothesis[None] - np.arange(4)[:, None], 1).astype(np.float64)
    matched = np.where(shared > 0, 10.0 * shared, 1.0)
    precision = np.sqrt(np.sqrt(matched.prod(axis=0) / (10.0 * totals).prod(axis=0)))
    brevity = np.exp(np.minimum(0.0, 1.0 - reference / np.maximum(hypothesis, 1)))
    return np.where(shared[0] > 0, precision * brevity, 0.0)


def clusters(texts: Sequence[str]) -> list[int]:
    """Return the number of each text's cluster (B), counted by first appearance; the order of the texts is that of the
    batch."""
    if not texts:
        return []
    grams = Grams(texts)
    first, second = grams.close()
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(len(texts), len(texts)))
    count, component = connected_components(graph, directed=False)
    names: list[tuple[int, int]] = [(int(number), 0) for number in component]
    sizes = np.bincount(component, minlength=count)
    for number in np.flatnonzero(sizes > 1):
        members = np.flatnonzero(component == number)
        for member, label in zip(members, linked(grams.distances(members)), strict=True):
            names[member] = (int(number), label)
    order = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return [order[name] for name in names]


def linked(distances: Floats) -> list[int]:
    """Return the cluster (m) of each of m >= 2 texts by average linkage of their distances (m, m)."""
    tree = linkage(squareform(distances, checks=False), "average")
    return [int(label) for label in fcluster(tree, np.nextafter(THRESHOLD, 0.0), "distance")]


def shares(texts: Sequence[str]) -> list[float]:
    """Return the share of the whole batch that each text's cluster holds (B), 1/B to 1.

    What is malformed stands in the batch as "": it counts in its size and is in nobody's cluster.
    """
    numbers = clusters(texts)
    sizes = Counter(numbers)
    return [sizes[number] / len(texts) for number in numbers]


def _table(tokens: Sequence[Sequence[str]], n: int) -> csr_array:
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

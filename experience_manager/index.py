"""Nearest vectors by inner product: exact, or approximate above a size.

Rows are only ever appended; whoever owns the index says which of them count. Exact search over all rows is FAISS's flat
scan; a search in few rows, and one with many queries, is a matrix product over the same memory (measured: 100 queries
against 100 000 rows take 0.15 s of CPU that way, 1.3 s with FAISS). The approximate index is HNSW, for a single query
over nearly all rows; everything else stays exact, and so does that query while the graph is being built in the
background.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

# A smaller share of the rows than this is gathered and compared, which then costs less than a scan over all with a
# mask.
GATHER_BELOW = 1 / 8
# So many times the wanted rows are looked at before a mask is used.
MORE = 4
# Queries of one matrix product: 64 x 100 000 similarities are 26 MB.
BLOCK = 64
HNSW_LINKS = 32
HNSW_BUILD = 128
HNSW_SEARCH = 128
BUILD_CHUNK = 256


def _faiss() -> Any:
    # Its stubs describe another interface than the package has; and it is only loaded where it is used.
    return importlib.import_module("faiss")


def nearest(similarities: Vectors, k: int, allowed: Mask) -> tuple[Rows, Vectors]:
    """Return the k rows of the greatest similarities (n), best first, and those; only rows that `allowed` (n) says."""
    k = min(k, int(np.count_nonzero(allowed)))
    values = np.where(allowed, similarities, np.float32(-2.0))
    if k <= 1:
        best = np.array([values.argmax()] if k else [], dtype=np.int64)
    else:
        best = np.argpartition(-values, k - 1)[:k]
        best = best[np.argsort(-values[best], kind="stable")]
    return best, values[best]


class VectorIndex:
    """Unit vectors of one dimension, by row number."""

    def __init__(self, dimension: int, *, hnsw_above: int | None = None) -> None:
        """Make an empty index; `hnsw_above` is the number of rows from which single queries are approximate, None:
        never."""
        faiss = _faiss()
        self.dimension = dimension
        self._hnsw_above = hnsw_above
        self._flat: Any = faiss.IndexFlatIP(dimension)
        self._hnsw: Any = None
        self._builder: threading.Thread | None = None
        self._stopping = threading.Event()

    def __len__(self) -> int:
        return int(self._flat.ntotal)

    def add(self, vectors: Vectors) -> None:
        """Append (n, d) rows."""
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise ValueError(f"vectors of shape {vectors.shape} do not go into an index of dimension {self.dimension}")
        self._flat.add(np.ascontiguousarray(vectors))

    def vectors(self) -> Vectors:
        """Return all rows, (n, d), as a view that the next `add` may invalidate."""
        faiss = _faiss()
        count = len(self)
        if not count:
            return np.zeros((0, self.dimension), dtype=np.float32)
        flat = faiss.rev_swig_ptr(self._flat.get_xb(), count * self.dimension)
        return np.asarray(flat, dtype=np.float32).reshape(count, self.dimension)

    def search(self, query: Vectors, k: int, allowed: Mask) -> tuple[Rows, Vectors]:
        """Return the rows nearest to one query (d), best first, and their similarities; only rows that `allowed` (n)
        says."""
        rows = np.flatnonzero(allowed)
        k = min(k, len(rows))
        if k == 0:
            return rows[:0], np.zeros(0, dtype=np.float32)
        if len(rows) < GATHER_BELOW * len(allowed):
            similarities = self.vectors()[rows] @ query
            best = np.argpartition(-similarities, k - 1)[:k]
            best = best[np.argsort(-similarities[best], kind="stable")]
            return rows[best], similarities[best]
        return self._scan(query, k, allowed)

    def similarities(self, queries: Vectors) -> Iterator[Vectors]:
        """Yield for each of (m, d) queries its similarities to all rows, (n), as a view that the next one may
        invalidate. Exact."""
        vectors = self.vectors()
        for start in range(0, len(queries), BLOCK):
            yield from queries[start : start + BLOCK] @ vectors.T

    def close(self) -> None:
        """Stop building the graph, if it is being built."""
        self._stopping.set()

    def wait(self) -> None:
        """Return when the graph holds every row; for those who measure it."""
        while self._graph() is None and self._builder is not None and not self._stopping.is_set():
            self._builder.join()

    def _scan(self, query: Vectors, k: int, allowed: Mask) -> tuple[Rows, Vectors]:
        faiss = _faiss()
        everything = bool(allowed.all())
        selector = None if everything else faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        approximate = (
            self._hnsw_above is not None
            and len(self) > self._hnsw_above
            and 2 * np.count_nonzero(allowed) >= len(allowed)
        )
        index = self._graph() if approximate else None
        if index is None and not everything:
            # A scan without a mask takes about half the time; among its best there mostly are enough that are allowed.
            similarities, rows = self._flat.search(np.ascontiguousarray(query[None]), min(MORE * k, len(self)))
            good = np.flatnonzero(allowed[rows[0]])[:k]
            if len(good) == k:
                return rows[0][good], similarities[0][good]
        if index is not None:
            parameters: Any = faiss.SearchParametersHNSW(efSearch=max(HNSW_SEARCH, 2 * k), sel=selector)
        else:
            index, parameters = self._flat, None if everything else faiss.SearchParameters(sel=selector)
        similarities, rows = index.search(np.ascontiguousarray(query[None]), k, params=parameters)
        there = rows[0] >= 0
        return rows[0][there], similarities[0][there]

    def _graph(self) -> Any:
        """Return the HNSW index if it holds every row, else None; few missing rows are added at once, many in the
        background."""
        if self._builder is not None and self._builder.is_alive():
            return None
        faiss = _faiss()
        if self._hnsw is None:
            self._hnsw = faiss.IndexHNSWFlat(self.dimension, HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
            self._hnsw.hnsw.efConstruction = HNSW_BUILD
        missing = self.vectors()[self._hnsw.ntotal :]
        if len(missing) > BUILD_CHUNK:
            # A copy, since the flat index may move its memory meanwhile.
            self._builder = threading.Thread(target=self._build, args=(missing.copy(),), name="hnsw", daemon=True)
            self._builder.start()
            return None
        if len(missing):
            self._hnsw.add(np.ascontiguousarray(missing))
        return self._hnsw

    def _build(self, vectors: Vectors) -> None:
        for start in range(0, len(vectors), BUILD_CHUNK):
            if self._stopping.is_set():
                return
            self._hnsw.add(np.ascontiguousarray(vectors[start : start + BUILD_CHUNK]))

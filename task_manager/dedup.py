"""Deduplication of queries: lexical (Jaccard similarity of word sets) and semantic (cosine similarity), both exact."""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from agentevolver.llm.embeddings import Vectors
from agentevolver.utils.scripts import UNSPACED, marks, usual

_WORD = re.compile(r"[^\W_]+")
# Characters per token in scripts without spaces: with pairs, one changed word changes about as many tokens in Chinese
# as in English.
GRAM = 2
# Guards ceil and floor against products like 0.7 * 10 = 7.000000000000001. Similarities are compared without it.
_SLACK = 1e-9


def words(text: str) -> frozenset[str]:
    """Return the case-folded words of a text (NFKC); scripts without spaces give character pairs."""
    if text.isascii():
        return frozenset(_WORD.findall(text.casefold()))
    folded, found = unicodedata.normalize("NFKC", text).casefold(), set[str]()
    if usual(folded):
        return frozenset(_WORD.findall(folded))
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


class _Bucket:
    def __init__(self, size: int) -> None:
        # Entries of one set size; the matrix (n, size) grows by doubling.
        self.tokens = np.zeros((16, size), dtype=np.int32)
        self.rows = array("q")
        self.postings: dict[int, array[int]] = {}  # places by prefix token

    def add(self, row: int, tokens: list[int], prefix: int) -> None:
        place = len(self.rows)
        if place == len(self.tokens):
            self.tokens = np.concatenate([self.tokens, np.zeros_like(self.tokens)])
        self.tokens[place] = tokens
        self.rows.append(row)
        for token in tokens[:prefix]:
            self.postings.setdefault(token, array("i")).append(place)


class LexicalIndex:
    """Finds an entry whose word set has at least `threshold` Jaccard similarity to a query's.

    `corpus`: sample texts that show which words are rare. It speeds up the search and does not change the results.
    """

    def __init__(self, threshold: float, corpus: Iterable[str] = ()) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"a Jaccard threshold lies in (0, 1], got {threshold}")
        self._threshold = threshold
        self._size = 0
        self._ids: dict[str, int] = {}
        self._rank: list[int] = []
        self._mark = np.zeros(1024, dtype=bool)
        self._buckets: dict[int, _Bucket] = {}
        self._exact: dict[frozenset[str], int] = {}
        counts = Counter(word for text in corpus for word in words(text))
        # Words outside the corpus get negative ranks later, so they count as rarer than all of these.
        for rank, (word, _) in enumerate(sorted(counts.items(), key=lambda item: (item[1], item[0]))):
            self._intern(word, rank)

    def __len__(self) -> int:
        return self._size

    def find(self, text: str) -> SimilarEntry | None:
        """Return a most similar entry at or above the threshold, or None. A text without words matches nothing."""
        found = words(text)
        if not found:
            return None
        if found in self._exact:
            return SimilarEntry(self._exact[found], 1.0)
        known = [self._ids[word] for word in found if word in self._ids]
        n, t = len(found), self._threshold
        if len(known) < math.ceil(t * n - _SLACK):
            return None
        known.sort(key=self._rank.__getitem__)
        # One shared bitmap instead of a new array per query; it is cleared below.
        self._mark[known] = True
        try:
            best = self._search(known, n, n - len(known))
        finally:
            self._mark[known] = False
        return best

    def add(self, text: str) -> int:
        row, found = self._size, words(text)
        self._size += 1
        if not found or found in self._exact:
            return row
        self._exact[found] = row
        tokens = sorted(
            (self._ids[w] if w in self._ids else self._intern(w) for w in found), key=self._rank.__getitem__
        )
        size = len(tokens)
        if size not in self._buckets:
            self._buckets[size] = _Bucket(size)
        self._buckets[size].add(row, tokens, size - math.ceil(self._threshold * size - _SLACK) + 1)
        return row

    def _search(self, known: list[int], n: int, unknown: int) -> SimilarEntry | None:
        # Prefix filtering (Chaudhuri et al. 2006, Bayardo et al. 2007) avoids comparing all pairs. Sets with J(x, y) =
        # |x & y| / |x + y| >= t share at least needed = ceil(t / (1 + t) * (|x| + |y|)) tokens. So in any fixed order
        # of tokens, one of the first |x| - needed + 1 tokens of x is among the first |y| - ceil(t |y|) + 1 of y, and t
        # |x| <= |y| <= |x| / t. Candidates are counted in full, so results equal the pairwise loop; with rare tokens
        # first there are few.
        t, best = self._threshold, None
        for size in range(math.ceil(t * n - _SLACK), math.floor(n / t + _SLACK) + 1):
            bucket = self._buckets.get(size)
            if bucket is None:
                continue
            needed = math.ceil(t / (1 + t) * (n + size) - _SLACK)
            # Unknown words rank as the rarest, so they occupy the front of the prefix and shorten the rest.
            prefix = known[: max(0, n - needed + 1 - unknown)]
            lists = [bucket.postings[token] for token in prefix if token in bucket.postings]
            if not lists:
                continue
            places = (
                np.frombuffer(lists[0], np.int32)
                if len(lists) == 1
                else np.unique(np.concatenate([np.frombuffer(p, np.int32) for p in lists]))
            )
            common = self._mark[bucket.tokens[places]].sum(axis=1)
            similarity = common / (n + size - common)
            top = int(similarity.argmax())
            if similarity[top] >= t and (best is None or similarity[top] > best.similarity):
                best = SimilarEntry(bucket.rows[int(places[top])], float(similarity[top]))
        return best

    def _intern(self, word: str, rank: int | None = None) -> int:
        token = len(self._ids)
        self._ids[word] = token
        self._rank.append(-token if rank is None else rank)
        if token >= len(self._mark):
            self._mark = np.concatenate([self._mark, np.zeros_like(self._mark)])
        return token


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
    def __init__(self, dimension: int) -> None:
        import faiss

        # Exact. An approximate index pays off beyond a million tasks; at 100,000, building one takes longer than
        # comparing all.
        self._index = faiss.IndexFlatIP(dimension)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def add(self, vectors: Vectors) -> None:
        self._index.add(np.ascontiguousarray(vectors, dtype=np.float32))

    def nearest(self, vector: Vectors, k: int = 1) -> list[SimilarEntry]:
        """Return the k nearest entries of a vector (d,), nearest first."""
        k = min(k, len(self))
        if k == 0:
            return []
        with _one_thread():
            cosines, rows = self._index.search(np.ascontiguousarray(vector[None, :], dtype=np.float32), k)
        return [SimilarEntry(int(r), float(c)) for r, c in zip(rows[0], cosines[0], strict=True)]

"""Nearest vectors, against the slow and obvious search."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experience_manager import index as module
from experience_manager.index import VectorIndex, nearest


def unit(count, dimension, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def slow(vectors, query, k, allowed):
    """One row after the other, best first, the earlier one first among equals."""
    rows = [i for i in range(len(vectors)) if allowed[i]]
    return sorted(rows, key=lambda i: -float(vectors[i] @ query))[:k]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 1000), st.data(), st.booleans())
def test_search_finds_what_a_loop_over_all_rows_finds(count, k, seed, data, by_scan):
    vectors, query = unit(count, 8, seed), unit(1, 8, seed + 1)[0]
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=np.bool_)
    index = VectorIndex(8)
    index.add(vectors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "GATHER_BELOW", 0 if by_scan else 2)
        rows, similarities = index.search(query, k, allowed)
    expected = slow(vectors, query, k, allowed)
    assert similarities == pytest.approx([float(vectors[i] @ query) for i in expected], abs=1e-5)
    assert rows.tolist() == expected


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 150), st.data())
def test_many_queries_at_once_find_what_each_alone_finds(count, k, queries, data):
    vectors, asked = unit(count, 8, 3), unit(queries, 8, 4)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=np.bool_)
    index = VectorIndex(8)
    index.add(vectors)
    found = [nearest(similarities, k, allowed) for similarities in index.similarities(asked)]
    assert [rows.tolist() for rows, _ in found] == [slow(vectors, query, k, allowed) for query in asked]
    assert all(len(rows) == len(best) == min(k, int(allowed.sum())) for rows, best in found)

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


def test_a_large_index_is_scanned_with_a_mask_and_finds_the_same():
    vectors = unit(20_000, 16)
    index = VectorIndex(16)
    index.add(vectors)
    allowed = np.random.default_rng(1).random(20_000) < 0.6
    for seed in range(5):
        query = unit(1, 16, 100 + seed)[0]
        assert index.search(query, 10, allowed)[0].tolist() == slow(vectors, query, 10, allowed)


def test_rows_may_be_added_between_searches_and_are_seen():
    index, vectors = VectorIndex(8), unit(300, 8)
    for start in range(0, 300, 50):
        index.add(vectors[start : start + 50])
        assert len(index) == start + 50 and np.array_equal(index.vectors(), vectors[: start + 50])
        assert index.search(vectors[start + 7], 1, np.ones(start + 50, dtype=np.bool_))[0].tolist() == [start + 7]


def test_vectors_of_another_dimension_are_refused():
    with pytest.raises(ValueError, match=r"shape \(3, 7\) do not go into an index of dimension 8"):
        VectorIndex(8).add(unit(3, 7))


def test_an_empty_index_finds_nothing():
    index = VectorIndex(8)
    assert index.vectors().shape == (0, 8)
    assert len(index.search(unit(1, 8)[0], 3, np.zeros(0, dtype=np.bool_))[0]) == 0

"""Nearest vectors, against the slow and obvious search."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experience_manager import index as module
from experience_manager.index import VectorIndex


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

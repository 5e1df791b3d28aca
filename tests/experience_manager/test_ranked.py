"""Orders and sums that the store makes, against those of all its experiences."""

import numpy as np
import pytest
from experience_fakes import STAMP, experience
from hypothesis import given, settings
from hypothesis import strategies as st

from experience_manager.experience import Category, covers, places_in
from experience_manager.store import Store


def unit(count, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((count, STAMP.dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


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

"""What says the same becomes one: thresholds, scopes, batches, and whose text is embedded."""

import pytest
from experience_fakes import SMALL, AngleEncoder, experience

from experience_manager.experience import PERSON
from experience_manager.index import Where
from experience_manager.pool import Pool
from experience_manager.store import Count


@pytest.fixture
def pool(store):
    """Cosine of two experiences: that of the angle between them; 0.85 is 31.8 degrees."""
    return Pool(store, AngleEncoder(), threshold=0.85)


def at(angle, identifier=None, **more):
    return experience(f"situation @{angle}", "advice", id=identifier or f"at{angle}", **more)


def test_what_reaches_the_threshold_is_joined_and_what_does_not_is_new(pool):
    pool.add([at(0)])
    added = pool.add([at(31), at(100)])
    assert added.ids == ("at0", "at100") and (added.inserted, added.joined) == (1, 1)
    assert pool.add([at(33)]).inserted == 1


def test_near_duplicates_of_different_places_are_never_one(pool):
    added = pool.add([at(0, "a", scope="site k7"), at(5, "b", scope="site k8"), at(10, "c")])
    assert added.inserted == 3


@pytest.mark.parametrize("calls", [1, 3])
def test_the_same_wording_about_other_places_is_one_experience_of_all_of_them(pool, calls):
    found = [at(0, name, scope=scope) for name, scope in (("a", "site k7"), ("b", "Site K8"), ("c", "site-k7"))]
    for batch in [found] if calls == 1 else [[one] for one in found]:
        pool.add(batch)
    (one,) = pool.store.records("default")
    assert (one.id, one.scope, one.support) == ("a", "site k7 | Site K8", 3)
    assert [len(pool.search("q @0", 9, Where(context=f"You are at site {name}."))) for name in ("k7", "k8", "k9")] == [
        1,
        1,
        0,
    ]
    assert pool.add([at(0, "d")]).ids == ("a",) and pool.store.get("default", "a").scope == ""
    assert len(pool.search("q @0", 9, Where(context="You are at site k9."))) == 1


def test_the_place_of_what_a_person_wrote_or_pinned_is_left_alone(pool):
    pool.add([at(0, "mine", scope="site k7", author=PERSON), at(90, "kept", scope="site k7", pinned=True)])
    assert pool.add([at(0, "x", scope="site k8"), at(90, "y", scope="site k8")]).inserted == 2
    assert pool.store.get("default", "mine").scope == "site k7"


def test_identical_texts_are_one_whatever_the_vectors_say(store):
    class Blind:
        name = "blind"

        def encode(self, texts):
            return SMALL.encode([f"{text} {i}" for i, text in enumerate(texts)])

    pool = Pool(store, Blind(), threshold=0.999)
    pool.add([experience(id="a")])
    assert pool.add([experience("other words entirely", "nothing alike"), experience(id="b")]).ids[1] == "a"


def test_the_wording_that_is_distilled_more_often_takes_over_with_its_vector_and_fresh_counters(pool):
    pool.add([at(0)])
    pool.count({"at0": Count(uses=9, successes=1)})
    rival = experience("situation @30", "the contrary", id="rival", task_ids=("t2",))
    assert pool.add([rival]).outvoted == 0
    assert pool.add([rival]).outvoted == 1
    won = pool.store.get("default", "at0")
    assert (won.content, won.support, won.uses, won.successes) == ("the contrary", 2, 0, 0)
    assert won.variants[0].content == "advice" and won.task_ids == ("t2",)
    assert pool.search("q @30", 1)[0].similarity == pytest.approx(1.0, abs=1e-5)

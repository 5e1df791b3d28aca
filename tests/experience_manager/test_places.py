"""Places in texts, and scopes that name several."""

from hypothesis import given, settings
from hypothesis import strategies as st

from experience_manager.experience import EVERYWHERE, mentions, places_of, union

WORD = st.text("abc7", min_size=1, max_size=4)


@settings(deadline=None)
@given(st.lists(WORD, max_size=6), st.lists(WORD, max_size=3), st.sampled_from([" ", ", ", "-", "\n", ". "]))
def test_a_text_names_a_place_exactly_if_it_holds_its_words_one_after_the_other(text, place, between):
    expected = any(text[i : i + len(place)] == place for i in range(len(text) + 1))
    assert mentions(between.join(text), " ".join(place).upper()) is expected


def test_a_place_is_found_in_a_script_without_spaces():
    assert mentions("你在七号站点工作。", "七号站点") and not mentions("你在七号站工作。", "七号站点")
    assert mentions("サイトk7で働く", "サイトK7") and not mentions("サイトk77で働く", "サイトk7")


SCOPES = st.lists(st.sampled_from(["site k7", "Site K8", "k8", "the site", "站点", "7"]), max_size=4).map(" | ".join)


@settings(deadline=None)
@given(SCOPES, SCOPES, SCOPES)
def test_a_union_holds_where_either_does_and_nowhere_else(one, other, third):
    both = places_of(union(one, other))
    everywhere = EVERYWHERE in places_of(one) | places_of(other)
    assert both == ({EVERYWHERE} if everywhere else places_of(one) | places_of(other))
    assert union(one, one) == one and places_of(union(union(one, other), third)) == places_of(
        union(one, union(other, third))
    )

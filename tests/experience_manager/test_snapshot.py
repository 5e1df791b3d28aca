"""Places in texts, and what a search may find."""

from hypothesis import given, settings
from hypothesis import strategies as st

from experience_manager.snapshot import mentions

WORD = st.text("abc7", min_size=1, max_size=4)


@settings(deadline=None)
@given(st.lists(WORD, max_size=6), st.lists(WORD, max_size=3), st.sampled_from([" ", ", ", "-", "\n", ". "]))
def test_a_text_names_a_place_exactly_if_it_holds_its_words_one_after_the_other(text, place, between):
    expected = any(text[i : i + len(place)] == place for i in range(len(text) + 1))
    assert mentions(between.join(text), " ".join(place).upper()) is expected


def test_part_of_a_word_is_no_place():
    assert not mentions("You are at site k77.", "site k7") and mentions("You are at Site-K7!", "site k7")
    assert mentions("anything", "") and not mentions("", "site k7")


def test_a_place_is_found_in_a_script_without_spaces():
    assert mentions("你在七号站点工作。", "七号站点") and not mentions("你在七号站工作。", "七号站点")
    assert mentions("サイトk7で働く", "サイトK7") and not mentions("サイトk77で働く", "サイトk7")

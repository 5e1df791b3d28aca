"""The join finds what comparing all pairs finds, and nothing else."""

import unicodedata

import pytest
from duplicates import jaccard, lexical_duplicates, pairwise_duplicates
from hypothesis import given, settings
from hypothesis import strategies as st

from task_manager.dedup import LexicalIndex, words

TEXTS = st.lists(st.lists(st.sampled_from("abcdefghijkl"), max_size=9).map(" ".join), max_size=40)


@settings(max_examples=80, deadline=None)
@given(TEXTS, st.sampled_from([0.1, 1 / 3, 0.5, 0.6, 2 / 3, 0.7, 0.8, 0.9, 1.0]))
def test_the_join_equals_the_pairwise_loop(texts, threshold):
    ours, theirs = lexical_duplicates(texts, threshold), pairwise_duplicates(texts, threshold)
    assert [match and match.similarity for match in ours] == [match and match.similarity for match in theirs]


@settings(max_examples=60, deadline=None)
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


HAN = st.text(alphabet="请把的牛奶放到明天下午三点会议室里然后告诉小王小李", min_size=0, max_size=24)
MIXED = st.lists(st.one_of(HAN, st.sampled_from(["Ann", " buy milk ", "、", "ที่บ้าน", "カレー", "42"])), max_size=4).map(
    "".join
)


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(st.lists(MIXED, max_size=25), st.sampled_from([0.1, 0.5, 0.7, 0.8, 1.0]))
def test_the_join_equals_the_loop_where_scripts_have_no_spaces(texts, threshold):
    ours, theirs = lexical_duplicates(texts, threshold), pairwise_duplicates(texts, threshold)
    assert [match and match.similarity for match in ours] == [match and match.similarity for match in theirs]


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(MIXED, TEXTS.map(" ".join)), min_size=1, max_size=3).map(" ".join))
def test_width_composition_and_punctuation_make_no_difference_in_any_script(text):
    wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)
    assert words(wide) == words(text) == words(unicodedata.normalize("NFD", text)) == words(f"\u300c{text}\u3002\u300d")


@pytest.mark.parametrize(
    ("one", "near", "far"),
    [
        (
            "请在明天下午三点之前把牛奶和面包送到王小明的办公室",
            "请在明天下午四点之前把牛奶和面包送到王小明的办公室。",
            "帮我取消上周五预订的北京到上海的火车票",
        ),
        (
            "明日の午後三時までに牛乳とパンを会議室に届けてください",
            "明日の午後四時までに牛乳とパンを会議室に届けてください!",
            "先週予約した新幹線の切符をキャンセルしてほしい",
        ),
        (
            "ช่วยส่งนมและขนมปังไปที่ห้องประชุมก่อนบ่ายสามโมงวันพรุ่งนี้",
            "ช่วยส่งนมและขนมปังไปที่ห้องประชุมก่อนบ่ายสี่โมงวันพรุ่งนี้",
            "ยกเลิกตั๋วรถไฟที่จองไว้เมื่อวันศุกร์ที่แล้ว",
        ),
    ],
)
def test_near_copies_are_found_in_scripts_without_spaces_and_other_requests_are_not(one, near, far):
    assert [match is None for match in lexical_duplicates([one, near, far], 0.8)] == [True, False, True]


def test_a_mark_is_part_of_its_word_in_scripts_with_spaces():
    assert words("किताब खरीदो") == {"किताब", "खरीदो"} and words("cafe\u0301 x") == {"café", "x"}


def test_case_and_punctuation_make_no_difference_and_a_threshold_is_met_exactly():
    index = LexicalIndex(0.8)
    index.add("Pay Ann, now: 4 coins!")
    assert index.find("pay ann now 4 coins").similarity == 1.0
    assert index.find("pay ann 4 coins").similarity == 0.8
    assert index.find("pay ann 4") is None

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.llm.embeddings import HashingEncoder
from task_manager.dedup import LexicalIndex, SemanticIndex, words

TEXTS = st.lists(st.lists(st.sampled_from("abcdefghijkl"), max_size=9).map(" ".join), max_size=40)


def jaccard(one, other):
    one, other = words(one), words(other)
    return len(one & other) / len(one | other) if one | other else 0.0


@settings(max_examples=50, deadline=None)
@given(TEXTS, st.sampled_from([0.1, 1 / 3, 0.5, 2 / 3, 0.7, 0.8, 1.0]), st.booleans())
def test_the_index_finds_what_comparing_with_each_finds_whether_it_saw_the_corpus_or_not(texts, threshold, saw):
    index, kept = LexicalIndex(threshold, texts if saw else ()), []
    for text in texts:
        best = max((jaccard(text, other) for other in kept), default=0.0)
        found = index.find(text)
        assert (found.similarity if found else 0.0) == (best if best >= threshold else 0.0)
        if found is None:
            index.add(text)
            kept.append(text)
        else:
            assert jaccard(text, kept[found.row]) == best


HAN = st.text(alphabet="请把的牛奶放到明天下午三点会议室里然后告诉小王小李", min_size=0, max_size=24)
MIXED = st.lists(st.one_of(HAN, st.sampled_from(["Ann", " buy milk ", "、", "ที่บ้าน", "カレー", "42"])), max_size=4).map(
    "".join
)


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(MIXED, TEXTS.map(" ".join)), min_size=1, max_size=3).map(" ".join))
def test_width_composition_and_punctuation_make_no_difference_in_any_script(text):
    wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)
    assert words(wide) == words(text) == words(unicodedata.normalize("NFD", text)) == words(f"\u300c{text}\u3002\u300d")


def test_near_copies_are_found_in_scripts_without_spaces_and_other_requests_are_not():
    index = LexicalIndex(0.8)
    index.add("请在明天下午三点之前把牛奶和面包送到王小明的办公室")
    assert index.find("请在明天下午四点之前把牛奶和面包送到王小明的办公室。") is not None
    assert index.find("帮我取消上周五预订的北京到上海的火车票") is None


def test_a_mark_is_part_of_its_word_in_scripts_with_spaces():
    assert words("किताब खरीदो") == {"किताब", "खरीदो"} and words("cafe\u0301 x") == {"café", "x"}


def test_case_and_punctuation_make_no_difference_and_a_threshold_is_met_exactly():
    index = LexicalIndex(0.8)
    index.add("Pay Ann, now: 4 coins!")
    assert index.find("pay ann now 4 coins").similarity == 1.0
    assert index.find("pay ann 4 coins").similarity == 0.8
    assert index.find("pay ann 4") is None


def test_nothing_is_near_in_an_empty_index_and_order_is_by_nearness():
    index, vectors = SemanticIndex(32), HashingEncoder(32).encode([*"abcdefgh"])
    assert index.nearest(vectors[0], 3) == []
    index.add(vectors)
    found = index.nearest(vectors[4], 5)
    assert found[0].row == 4 and len(found) == 5
    assert [entry.similarity for entry in found] == sorted((entry.similarity for entry in found), reverse=True)

from hypothesis import given, settings
from hypothesis import strategies as st

from task_manager.dedup import LexicalIndex, words

TEXTS = st.lists(st.lists(st.sampled_from("abcdefghijkl"), max_size=9).map(" ".join), max_size=40)


def jaccard(one, other):
    one, other = words(one), words(other)
    return len(one & other) / len(one | other) if one | other else 0.0


@settings(max_examples=50, deadline=None)
@given(TEXTS, st.sampled_from([0.1, 1 / 3, 0.5, 2 / 3, 0.7, 0.8, 1.0]))
def test_the_index_finds_what_comparing_with_each_finds(texts, threshold):
    index, kept = LexicalIndex(threshold), []
    for text in texts:
        best = max((jaccard(text, other) for other in kept), default=0.0)
        found = index.find(text)
        assert (found.similarity if found else 0.0) == (best if best >= threshold else 0.0)
        if found is None:
            index.add(text)
            kept.append(text)
        else:
            assert jaccard(text, kept[found.row]) == best


def test_near_copies_are_found_in_scripts_without_spaces_and_other_requests_are_not():
    index = LexicalIndex(0.8)
    index.add("请在明天下午三点之前把牛奶和面包送到王小明的办公室")
    assert index.find("请在明天下午四点之前把牛奶和面包送到王小明的办公室。") is not None
    assert index.find("帮我取消上周五预订的北京到上海的火车票") is None


def test_case_and_punctuation_make_no_difference_and_a_threshold_is_met_exactly():
    index = LexicalIndex(0.8)
    index.add("Pay Ann, now: 4 coins!")
    assert index.find("pay ann now 4 coins").similarity == 1.0
    assert index.find("pay ann 4 coins").similarity == 0.8
    assert index.find("pay ann 4") is None

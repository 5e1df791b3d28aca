"""The query in opening messages: replaced where it is marked, and never anything else lost."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentevolver.utils.openings import marked_query, replace_query

TEXT = st.text(alphabet="abc \n", max_size=6)


def said(*contents):
    return [{"role": "user", "content": content} for content in contents]


@given(TEXT, TEXT, TEXT.filter(str.strip))
@example(before="a", after="", query="aa")
def test_whatever_stands_around_the_query_stays(before, after, query):
    messages = said("rules", before + query + after)
    replaced = replace_query(messages, "X", {"query": query})
    if marked_query(messages, {"query": query}) is not None:
        assert replaced == said("rules", f"{before}X{after}")
    else:
        assert replaced[-1]["content"] == f"{before}{query}{after}\n\nX"
    assert messages == said("rules", before + query + after)


@pytest.mark.parametrize("info", [None, {}, {"query": ""}, {"query": 3}, {"query": "not there"}, {"query": "a"}])
def test_without_a_mark_another_query_goes_below(info):
    assert replace_query(said("a map of a lake"), "walk", info) == said("a map of a lake\n\nwalk")

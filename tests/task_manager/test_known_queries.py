"""What counts as having a task already."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentevolver.llm.embeddings import HashingEncoder
from task_manager.dedup import words
from task_manager.known_queries import KnownQueries
from task_manager.settings import DeduplicationSettings

LONG = "buy three pieces of the red soap and pay for them now"


def pool(evaluation=(), encoder=None, **settings):
    return KnownQueries(DeduplicationSettings(**settings), encoder or HashingEncoder(), evaluation)


async def test_what_words_do_not_tell_embeddings_do():
    class Alike(HashingEncoder):
        def encode(self, texts):
            return super().encode(["same"] * len(texts))

    kept = pool(encoder=Alike())
    assert await kept.take("remove it", "w") is None
    assert (await kept.clash("delete that thing", "w")).kind == "semantic"
    words_only = pool(encoder=Alike(), semantic=False)
    await words_only.take("remove it", "w")
    assert await words_only.clash("delete that thing", "w") is None


@pytest.mark.parametrize(("scope", "is_new"), [("all", False), ("world", True)])
async def test_the_same_words_in_another_world_may_be_another_task(scope, is_new):
    kept = pool(scope=scope)
    await kept.take("what is my balance", "w1")
    assert (await kept.clash("what is my balance", "w2") is None) is is_new
    assert await kept.clash("what is my balance", "w1") is not None


@pytest.mark.parametrize(
    ("contamination", "same", "similar"),
    [("all", "evaluation", "evaluation"), ("exact", "evaluation", None), ("off", None, None)],
)
async def test_evaluation_tasks_are_kept_out_in_every_world(contamination, same, similar):
    kept = pool([LONG], contamination=contamination, scope="world")
    for query, expected in ((LONG.upper() + "!", same), (LONG + " please", similar)):
        clash = await kept.clash(query, "anywhere")
        assert (clash and clash.against) == expected
    assert len(kept) == 0


@given(st.lists(st.text("abcd ", max_size=12), max_size=20), st.text("abcde ", max_size=12), st.integers(1, 5))
def test_neighbours_by_words_are_those_with_most_words_in_common_the_first_of_equal_ones_first(queries, asked, k):
    async def told():
        kept = pool(semantic=False)
        await kept.load(queries, ["w"] * len(queries))
        return await kept.neighbours(asked, "w", k)

    assert asyncio.run(told()) == sorted(queries, key=lambda other: -len(words(asked) & words(other)))[:k]


async def test_of_two_equal_ones_at_the_same_time_one_is_kept():
    class Slow(HashingEncoder):
        def encode(self, texts):
            import time

            time.sleep(0.02)
            return super().encode(texts)

    kept = pool(encoder=Slow())
    results = await asyncio.gather(*(kept.take("the very same task", "w") for _ in range(8)))
    assert sum(clash is None for clash in results) == 1 and len(kept) == 1

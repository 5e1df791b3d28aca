"""What counts as having a task already."""

import asyncio

from agentevolver.llm.embeddings import HashingEncoder
from task_manager.known_queries import KnownQueries
from task_manager.settings import DeduplicationSettings

LONG = "buy three pieces of the red soap and pay for them now"


def pool(evaluation=(), encoder=None):
    return KnownQueries(DeduplicationSettings(), encoder or HashingEncoder(), evaluation)


async def test_what_words_do_not_tell_embeddings_do():
    class Alike(HashingEncoder):
        def encode(self, texts):
            return super().encode(["same"] * len(texts))

    kept = pool(encoder=Alike())
    assert await kept.take("remove it") is None
    assert (await kept.clash("delete that thing")).kind == "semantic"


async def test_evaluation_tasks_are_kept_out():
    kept = pool([LONG])
    for query in (LONG.upper() + "!", LONG + " please"):
        assert (await kept.clash(query)).against == "evaluation"
    assert await kept.clash("something else entirely") is None and len(kept) == 0


async def test_of_two_equal_ones_at_the_same_time_one_is_kept():
    class Slow(HashingEncoder):
        def encode(self, texts):
            import time

            time.sleep(0.02)
            return super().encode(texts)

    kept = pool(encoder=Slow())
    results = await asyncio.gather(*(kept.take("the very same task") for _ in range(8)))
    assert sum(clash is None for clash in results) == 1 and len(kept) == 1

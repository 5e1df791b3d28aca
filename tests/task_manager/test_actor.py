"""Asking for an action: useless replies of a cache cost no try."""

import pytest
from questioning_fakes import Tutor

from agentevolver.llm.asking import Asker
from agentevolver.llm.errors import LLMReply, LLMReplyError
from agentevolver.llm.prompts import messages
from agentevolver.llm.settings import Role
from task_manager.actions import format_of
from task_manager.actor import MOST_REPLIES, Actor


def prompt(room):
    return messages("explorer/act", "Explore.", {"opening": "site k3", "transcript": "(no steps yet)"})


def kept(text):
    return LLMReply(text, 1, 1, 0.0, True)


async def next_of(*says):
    tutor = Tutor({"explorer/act": says})
    return await Actor(Asker(tutor), Role.EXPLORER, format_of("pocket"), "text").next(prompt, opening="site k3", seed=5)


async def test_useless_replies_of_a_cache_cost_no_try_so_that_a_next_start_asks_for_new_ones():
    assert (await next_of(kept(""), kept(""), "", "note.list home")).action == "note.list home"
    with pytest.raises(LLMReplyError, match="in 4 replies: the reply is empty"):
        await next_of(kept(""), kept(""), "", "")
    with pytest.raises(LLMReplyError, match=f"in {MOST_REPLIES} replies"):
        await next_of(*[kept("")] * MOST_REPLIES)

"""Asking for an action: useless replies are shown what is wrong, and those of a cache cost no try."""

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


class Told(Tutor):
    """Keeps what it was sent."""

    def __init__(self, *says):
        super().__init__({"explorer/act": says})
        self.sent = []

    async def chat(self, role, messages, tools=None, **sampling):
        self.sent.append(messages)
        return await super().chat(role, messages, tools, **sampling)


async def next_of(tutor):
    return await Actor(Asker(tutor), Role.EXPLORER, format_of("pocket"), "text").next(prompt, opening="site k3", seed=5)


async def test_a_useless_reply_is_shown_to_the_model_with_what_is_wrong():
    tutor = Told('{"act', "note.list home")
    assert (await next_of(tutor)).action == "note.list home"
    assert [message["role"] for message in tutor.sent[1]] == ["system", "user", "assistant", "user"]
    assert tutor.sent[1][2]["content"] == '{"act' and "the JSON of the reply is broken" in tutor.sent[1][3]["content"]
    assert [sampling["seed"] for _, _, sampling in tutor.prompts] == [5, 6]


async def test_useless_replies_of_a_cache_cost_no_try_so_that_a_next_start_asks_for_new_ones():
    assert (await next_of(Told(kept(""), kept(""), "", "note.list home"))).action == "note.list home"
    with pytest.raises(LLMReplyError, match="in 4 replies: the reply is empty"):
        await next_of(Told(kept(""), kept(""), "", ""))
    with pytest.raises(LLMReplyError, match=f"in {MOST_REPLIES} replies"):
        await next_of(Told(*[kept("")] * MOST_REPLIES))

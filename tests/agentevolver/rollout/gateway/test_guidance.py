"""Guidance in a rollout behind the gateway: the policy sees it, the agent does not, and what is trained on may not."""

import asyncio

from experience_manager.guide import Guidance, inject
from tests.agentevolver.rollout.gateway.harness import ScriptedEngine, asked, encoded, rollout, said, tokenizer, user


class Guide:
    """Guides every opening with the same text; counts how often it is asked."""

    def __init__(self, text="read the manual", *, keep=False):
        self.guidance, self.asked = Guidance(text, ("a",), keep), []

    async def __call__(self, opening):
        self.asked.append(opening)
        await asyncio.sleep(0)
        return inject(opening, self.guidance, "<EXP>{}</EXP>")


def text(ids):
    return tokenizer().decode(ids)


async def played_with(renderer, guide, limits=None):
    engine = ScriptedEngine(["one", "two", "three"])
    options = {} if limits is None else {"limits": limits}
    played = rollout(renderer, engine, guide=guide, **options)
    first = await played.complete(asked(user("task")))
    await played.complete(asked(user("task"), first.message, user("a")))
    # The same task told anew, as agents do that rewrite their history.
    await played.complete(asked(user("task"), said("first I did one"), user("b")))
    return engine, played


async def test_stripped_samples_have_the_plain_opening_and_all_that_was_sampled(renderer):
    guide = Guide()
    engine, played = await played_with(renderer, guide)
    assert guide.asked == [[user("task")]] and played.injection.guided
    assert all("<EXP>read the manual</EXP>task" in text(prompt) for prompt, _, _ in engine.calls)
    assert played.opening == [user("task")]
    assert played.messages[0]["content"] == "<EXP>read the manual</EXP>task"
    plain_engine, plain = await played_with(renderer, None)
    for sample, other in zip(played.samples(), plain.samples(), strict=True):
        assert sample.prompt_ids == other.prompt_ids and sample.response_ids == other.response_ids
        assert sample.response_mask == other.response_mask
    assert len(engine.calls[0][0]) > len(plain_engine.calls[0][0])


async def test_calls_that_come_at_once_ask_once(renderer):
    guide = Guide()
    played = rollout(renderer, guide=guide)
    await asyncio.gather(*[played.complete(asked(user("task"))) for _ in range(3)])
    assert len(guide.asked) == 1
    assert [s.response_ids for s in played.samples()] == [encoded("well")] * 3


async def test_no_think_is_said_to_the_policy_alone(renderer):
    engine = ScriptedEngine(["one", "two"])
    played = rollout(renderer, engine, no_think=True)
    first = await played.complete(asked(user("task")))
    await played.complete(asked(user("task"), first.message, user("a")))
    assert "task /no_think<" in text(engine.calls[0][0]) and text(engine.calls[1][0]).count("a /no_think<") == 1
    assert played.chains == 1

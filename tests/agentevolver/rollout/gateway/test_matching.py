"""Chains, for whatever an agent may send: nothing is made twice, and what is trained on is what was sampled."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.rollout.gateway.matching import key_of
from context_manager.chat import ChatRenderer
from tests.agentevolver.rollout.gateway.harness import ScriptedEngine, asked, encoded, rollout, said, tokenizer, user

words = st.text(alphabet="ab <>|", min_size=0, max_size=8)


class Counting(ScriptedEngine):
    """Says its own number, so that every reply is another one."""

    async def generate(self, request_id, prompt_ids, sampling_params):
        self.replies = [f"r{len(self.calls)}"]
        return await super().generate(request_id, prompt_ids, sampling_params)


def made():
    engine = Counting()
    return engine, rollout(ChatRenderer(tokenizer()), engine, max_samples=None)


def trained(samples):
    return [
        [i for i, mask in zip(sample.response_ids, sample.response_mask, strict=True) if mask] for sample in samples
    ]


@pytest.mark.thorough
@given(st.lists(st.lists(words, min_size=1, max_size=3), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_any_split_of_a_conversation_into_calls_is_one_chain(parts):
    engine, played = made()

    async def play():
        messages = []
        for part in parts:
            messages += [user(text) for text in part]
            messages.append((await played.complete(asked(*messages))).message)

    asyncio.run(play())
    (sample,) = played.samples()
    prompt, sampled, _ = engine.calls[-1]
    assert sample.prompt_ids + sample.response_ids == prompt + sampled
    assert trained([sample]) == [[i for number in range(len(parts)) for i in encoded(f"r{number}")]]
    for (earlier, answered, _), (later, _, _) in zip(engine.calls, engine.calls[1:], strict=False):
        assert later[: len(earlier) + len(answered)] == earlier + answered
    assert not played.differences


@pytest.mark.thorough
@given(st.lists(st.tuples(st.integers(0, 3), words), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_whatever_an_agent_branches_off_is_trained_on_once(moves):
    """`moves`: how many turns to go back from the last conversation, and what to say there."""
    engine, played = made()

    async def play():
        messages = []
        for back, text in moves:
            messages = messages[: max(len(messages) - 2 * back, 0)]
            messages.append(user(text))
            messages.append((await played.complete(asked(*messages))).message)

    asyncio.run(play())
    samples = played.samples()
    ids = sorted(i for one in trained(samples) for i in one)
    assert ids == sorted(i for number in range(len(moves)) for i in encoded(f"r{number}"))
    assert sum(sample.share for sample in samples) > 0.999
    # One conversation is sent as one list of ids, whoever's chain it is on.
    assert len({tuple(prompt) for prompt, _, _ in engine.calls}) == len({json.dumps(m) for m in asked_for(moves)})
    steps = sorted({step for sample in samples for step in sample.steps})
    assert steps == list(range(len(moves))) == [step.index for step in played.steps]


def asked_for(moves):
    messages = []
    for number, (back, text) in enumerate(moves):
        messages = [*messages[: max(len(messages) - 2 * back, 0)], user(text)]
        yield list(messages)
        messages.append(said(f"r{number}"))


@given(words, words, st.dictionaries(words, st.integers() | words, max_size=3))
@settings(deadline=None)
def test_a_key_is_the_same_however_a_message_is_told(thought, text, arguments):
    def called(content, arguments, call_id):
        function = {"name": "f", "arguments": arguments}
        return {**said(content), "tool_calls": [{"id": call_id, "type": "function", "function": function}]}

    tight = json.dumps(arguments, separators=(",", ":"), sort_keys=True)
    whole = called(f"<think>{thought}</think>\n\n{text}", json.dumps(arguments, indent=1), "c1")
    assert key_of(whole) == key_of(called(text, tight, "other"))
    assert key_of(called(text, tight, "c1")) != key_of(called(text, json.dumps({**arguments, "new": 1}), "c1"))
    assert key_of(user(f" {text}")) != key_of(user(text))


async def test_two_that_go_on_from_one_call_at_once_are_two_chains(renderer):
    engine = ScriptedEngine(["one", "two", "three"])
    played = rollout(renderer, engine)
    await played.complete(asked(user("task")))
    engine.gate = asyncio.Event()
    both = [played.complete(asked(user("task"), said("one"), user(text))) for text in ("a", "b")]
    waiting = asyncio.gather(*both)
    while engine.waiting < 2:
        await asyncio.sleep(0)
    engine.gate.set()
    await waiting
    assert played.chains == 2
    assert trained(played.samples()) == [encoded("one") + encoded("two"), encoded("three")]

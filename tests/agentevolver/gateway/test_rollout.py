"""A rollout's calls as chains, turns and samples."""

import asyncio

import pytest

from agentevolver.gateway.request import RequestRefused
from agentevolver.types import StopReason
from context_manager.settings import ContextLimits
from tests.agentevolver.gateway.harness import ScriptedEngine, asked, encoded, failing, rollout, said, user


async def test_calls_that_go_on_from_one_another_are_one_sample(renderer):
    engine = ScriptedEngine(["one", "two", "three"])
    played = rollout(renderer, engine)
    messages = [user("task")]
    for number in range(3):
        completion = await played.complete(asked(*messages))
        messages += [completion.message, user(f"answer {number}")]
    (sample,) = played.samples()
    assert sample.prompt_ids == engine.calls[0][0]
    assert sample.prompt_ids + sample.response_ids == engine.calls[2][0] + engine.calls[2][1]
    trained = [i for i, mask in zip(sample.response_ids, sample.response_mask, strict=True) if mask]
    assert trained == encoded("one") + encoded("two") + encoded("three")
    assert [step.observation for step in played.steps] == ["answer 0", "answer 1", ""]
    assert [step.action for step in played.steps] == ["one", "two", "three"]
    assert [m["content"] for m in played.messages] == ["task", "one", "answer 0", "two", "answer 1", "three"]
    assert played.chains == 1 and not played.differences


async def test_a_changed_earlier_message_forks_and_keeps_the_ids_before_it(renderer):
    engine = ScriptedEngine(["one", "two", "three"])
    played = rollout(renderer, engine)
    await played.complete(asked(user("task")))
    await played.complete(asked(user("task"), said("one"), user("a")))
    await played.complete(asked(user("task"), said("one"), user("b")))
    assert played.chains == 2
    first, second = played.samples()
    assert sum(first.response_mask) == len(encoded("one") + encoded("two"))
    assert sum(second.response_mask) == len(encoded("three"))
    shared = engine.calls[0][0] + engine.calls[0][1]
    assert second.prompt_ids[: len(shared)] == shared
    (why,) = played.differences
    assert (why.place, why.before, why.after) == (2, "user: a", "user: b")
    assert [sample.share for sample in (first, second)] == [pytest.approx(8 / 14), pytest.approx(6 / 14)]


async def test_the_same_request_again_is_sent_the_same_ids(renderer):
    engine = ScriptedEngine(["one", "two"])
    played = rollout(renderer, engine)
    for _ in range(2):
        await played.complete(asked(user("task")))
    assert engine.calls[0][0] == engine.calls[1][0]
    assert [sum(sample.response_mask) for sample in played.samples()] == [4, 4]


async def test_a_full_context_is_refused_and_ends_nothing(renderer):
    played = rollout(renderer, limits=ContextLimits(40, 20, 100, 8, 400))
    await played.complete(asked(user("t")))
    with pytest.raises(RequestRefused) as refused:
        await played.complete(asked(user("t"), said("well"), user("long " * 20)))
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    assert played.stop_reason is StopReason.CONTEXT_FULL
    await played.complete(asked(user("t")))
    assert played.stop_reason is None and played.calls == 2


async def test_an_engine_that_goes_on_failing_ends_the_rollout(renderer):
    played = rollout(renderer, failing(3))
    for retry_s in (1.0, 1.0, None):
        with pytest.raises(RequestRefused) as refused:
            await played.complete(asked(user("t")))
        assert refused.value.status == 503 and refused.value.retry_s == retry_s
    assert played.stop_reason is StopReason.LLM_ERROR and played.closed
    with pytest.raises(RequestRefused) as refused:
        await played.complete(asked(user("t")))
    assert refused.value.status == 409


async def test_closing_refuses_what_waits(renderer):
    engine = ScriptedEngine(gate=asyncio.Event())
    played = rollout(renderer, engine)
    waiting = asyncio.create_task(played.complete(asked(user("t"))))
    while not engine.waiting:
        await asyncio.sleep(0)
    played.close("its time is over")
    with pytest.raises(RequestRefused, match="its time is over"):
        await waiting
    assert not engine.waiting and not played.samples()

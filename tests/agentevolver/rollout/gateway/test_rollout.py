"""A rollout's calls as chains, turns and samples."""

import pytest

from agentevolver.rollout.engine import EngineRefused
from agentevolver.rollout.gateway import chat
from agentevolver.rollout.gateway.request import RequestRefused
from agentevolver.rollout.gateway.rollout import CallLimits
from agentevolver.types import StopReason
from agentevolver.utils import seeds
from context_manager.settings import ContextLimits
from tests.agentevolver.rollout.gateway.harness import (
    ROOMY,
    ScriptedEngine,
    asked,
    encoded,
    failing,
    rollout,
    said,
    user,
)


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


async def test_a_request_that_the_engine_refuses_is_refused_each_time_and_the_rollout_goes_on(renderer):
    engine = ScriptedEngine([*[EngineRefused("Grammar error: Unknown format: path")] * 9, "well"])
    played = rollout(renderer, engine)
    for number in range(1, 10):
        with pytest.raises(RequestRefused, match="Unknown format: path") as caught:
            await played.complete(asked(user("go"), structure={"json": {"format": "path"}}))
        assert (caught.value.status, caught.value.retry_s, len(engine.calls)) == (400, None, number)
    assert played.stop_reason is None and "Unknown format: path" in played.note
    assert (await played.complete(asked(user("go")))).content == "well" and played.note == ""


async def test_the_nth_call_has_the_nth_draw_whatever_failed_in_between(renderer):
    def drawn(engine):
        with seeds.drawing(7, "group", 0):
            return rollout(renderer, engine), [seeds.current().anew().seed("policy")]

    engine, broken = ScriptedEngine(), failing(1)
    (whole, first), (outage, _) = drawn(engine), drawn(broken)
    for number in range(3):
        await whole.complete(asked(user(f"task {number}")))
    with pytest.raises(RequestRefused):
        await outage.complete(asked(user("task 0")))
    for number in range(3):
        await outage.complete(asked(user(f"task {number}")))
    drawn_seeds = [sampling["seed"] for _, _, sampling in engine.calls]
    assert drawn_seeds[:1] == first and len(set(drawn_seeds)) == 3
    assert [sampling["seed"] for _, _, sampling in broken.calls] == [drawn_seeds[0], *drawn_seeds]


async def test_sampling_is_the_runs_and_the_agents_limits_only_lower(renderer):
    engine = ScriptedEngine(["one two three"])
    played = rollout(renderer, engine)
    body = {"messages": [user("go")], "temperature": 0, "top_p": 0.1, "seed": 3, "tool_choice": "required"}
    for limit in (5, 5000):
        await played.complete(chat.read({**body, "max_tokens": limit}))
    first, second = [sampling for _, _, sampling in engine.calls]
    assert first == {"temperature": 0.7, "max_tokens": 5}
    assert second == {"temperature": 0.7, "max_tokens": ROOMY.max_new_tokens}
    assert played.ignored == {"temperature": 2, "top_p": 2, "seed": 2, "tool_choice": 2}
    assert [step.truncated for step in played.steps] == [True, False]


async def test_a_stop_text_ends_what_the_agent_is_told_and_the_ids_stay(renderer):
    engine = ScriptedEngine([encoded("one Observation: x", closed=False), "two"])
    played = rollout(renderer, engine)
    first = await played.complete(asked(user("go"), stop=("Observation:",)))
    assert (first.content, first.finish, first.stopped_by) == ("one ", "stop", "Observation:")
    await played.complete(asked(user("go"), first.message, user("on")))
    assert engine.calls[0][2]["stop"] == ["Observation:"] and not played.steps[0].truncated
    assert played.chains == 1 and encoded("one Observation: x", closed=False) == played.samples()[0].response_ids[:18]


async def test_limits_of_calls_and_of_sampled_tokens(renderer):
    for limits, answered in ((CallLimits(calls=2), 2), (CallLimits(sampled_tokens=4), 1)):
        played = rollout(renderer, call_limits=limits)
        for _ in range(answered):
            await played.complete(asked(user("t")))
        with pytest.raises(RequestRefused, match="this rollout has had its"):
            await played.complete(asked(user("t")))
        assert played.stop_reason is StopReason.MAX_STEPS and played.calls == answered

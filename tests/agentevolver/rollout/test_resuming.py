"""Replies over updates: each token with its own log-prob and version, as many as were asked for, from noise of its
own."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.rollout.engine import Generated
from agentevolver.rollout.pause import EnginePause
from agentevolver.rollout.resuming import ResumingEngine


class Output:
    def __init__(self, ids, log_probs, stop_reason, version):
        self.token_ids, self.log_probs, self.stop_reason = ids, log_probs, stop_reason
        self.extra_fields = {"min_global_steps": version, "max_global_steps": version}


class Engine:
    """A server whose policy says its version with every token: 100 * version + how many tokens there are before.

    `cuts` are the tokens after which replies are aborted, one a call; `length` is the whole reply's.
    """

    def __init__(self, cuts, length, prompt=1):
        self.cuts, self.length, self.prompt, self.version = list(cuts), length, prompt, 3
        self.asked = []

    async def generate(self, request_id, prompt_ids, sampling_params):
        self.asked.append((list(prompt_ids), dict(sampling_params)))
        before = len(prompt_ids) - self.prompt
        room, cut = sampling_params["max_tokens"], self.cuts.pop(0) if self.cuts else None
        end = min(self.length, before + room, before + cut if cut is not None else self.length)
        aborted = cut is not None and end < self.length
        ids = [100 * self.version + place for place in range(before, end)]
        version, self.version = self.version, self.version + aborted
        stop_reason = "aborted" if aborted else "completed"
        return Output(ids, [-float(i) for i in ids] if ids or not aborted else None, stop_reason, version)


def engine_of(server, **options):
    return ResumingEngine(server, 5, pause=EnginePause(), **options)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr("agentevolver.rollout.resuming.AGAIN_S", 0.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=5), st.integers(1, 12), st.integers(1, 12))
def test_a_reply_in_pieces_is_one_reply(cuts, length, room):
    server, again = Engine(cuts, length), Engine(cuts, length)
    found, _ = [
        asyncio.run(engine_of(one).generate("r", [7], {"max_tokens": room, "seed": 5})) for one in (server, again)
    ]
    assert server.asked == again.asked, "a run that is repeated asks the same"
    assert [one % 100 for one in found.ids] == list(range(min(length, room))), "no token is missing, none is twice"
    assert found.log_probs == [-float(one) for one in found.ids], "each with the log-prob that it was sampled with"
    versions = [one // 100 for one in found.ids]
    assert (found.min_version, found.max_version) == (min(versions), max(versions))
    for prompt, sampling in server.asked:
        assert prompt[1:] == found.ids[: len(prompt) - 1], "it goes on from what was sampled"
        assert sampling["max_tokens"] == room - (len(prompt) - 1)
    seeds = [sampling["seed"] for _, sampling in server.asked]
    assert seeds[0] == 5 and len(set(seeds)) == len(seeds), "noise does not start anew"


@pytest.mark.parametrize("held", [{"stop": ["x"]}, {"presence_penalty": 1.0}])
def test_what_looks_at_the_whole_reply_has_it_begun_anew(held):
    server = Engine([2], 4)
    found = asyncio.run(engine_of(server).generate("r", [7], {"max_tokens": 9, **held}))
    assert [prompt for prompt, _ in server.asked] == [[7], [7]]
    assert found == Generated([400, 401, 402, 403], [-400.0, -401.0, -402.0, -403.0], 4, 4)


async def test_nothing_is_sent_while_the_engine_sleeps_and_the_sleep_is_not_the_replys_time():
    pause, server = EnginePause(), Engine([], 3)
    pause.set(asleep=True)
    engine = ResumingEngine(server, 0.1, pause=pause)
    reply = asyncio.ensure_future(engine.generate("r", [7], {"max_tokens": 9}))
    await asyncio.sleep(0.3)
    assert server.asked == [] and not reply.done()
    pause.set(asleep=False)
    assert len((await reply).ids) == 3


async def test_validation_goes_on_while_training_waits():
    pause = EnginePause()
    pause.set(validating=True)
    mine = asyncio.ensure_future(ResumingEngine(Engine([], 3), 5, pause=pause).generate("r", [7], {"max_tokens": 9}))
    found = await ResumingEngine(Engine([], 3), 5, pause=pause, validation=True).generate("r", [7], {"max_tokens": 9})
    assert len(found.ids) == 3 and not mine.done()
    pause.set(validating=False)
    assert len((await mine).ids) == 3

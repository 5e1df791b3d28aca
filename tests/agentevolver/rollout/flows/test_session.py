"""The session: every call becomes a step, what cannot be trained on is no crash, and misuse is named."""

from dataclasses import dataclass

import pytest

from agentevolver.rollout.engine import EngineError, Generated
from agentevolver.rollout.flows import AgentFlow
from agentevolver.rollout.policy import ChatReply
from agentevolver.rollout.rows import to_outputs
from agentevolver.types import StopReason
from context_manager.settings import ContextSettings
from context_manager.template import ContextLimits, ContextTemplate, SideCall
from tests.agentevolver.rollout.flows.harness import play

SEEN = [("user", "o" * 50, False)]
TIGHT = ContextLimits(600, 600, 1_300, 48, 60)


def said(renderer, *texts):
    return [[*renderer.encode(text), renderer.tokenizer.eos_token_id] for text in texts]


class Asks(AgentFlow):
    """Runs a coroutine of the test's."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    async def run(self, session):
        await self.body(session)
        return StopReason.MAX_STEPS


def test_a_flow_may_act_on_what_the_policy_just_said_alone(chatml):
    async def acts_first(session):
        await session.act("made up")

    async def acts_twice(session):
        text = await session.ask()
        await session.act(text)
        await session.act(text)

    for body in (acts_first, acts_twice):
        with pytest.raises(RuntimeError, match="must `ask` before each `act`"):
            play(chatml, "causal", Asks(body), said(chatml, "x"), SEEN)


def test_what_is_said_and_not_acted_on_is_a_step_without_an_observation(chatml):
    async def thinks_aloud(session):
        await session.ask("plan")
        session.tell("and now")
        await session.act(await session.ask())
        session.tell("done?")
        await session.ask("review")

    rollout = play(chatml, "causal", Asks(thinks_aloud), said(chatml, "a", "b", "c"), SEEN).rollout
    steps = rollout.trajectory.steps
    assert [(s.index, s.kind, s.action, s.observation) for s in steps] == [
        (0, "plan", "a", ""),
        (1, "action", "b", "o" * 50),
        (2, "review", "c", ""),
    ]
    assert [sample.steps for sample in rollout.samples] == [[0, 1, 2]]


def test_a_sample_over_the_limit_is_dropped_by_name_and_the_rollout_goes_on(chatml):
    class TooLong:
        async def generate(self, request_id, prompt_ids, sampling_params):
            ids = [65] * 700
            return Generated(ids, [-0.5] * 700, 1, 1)

    rollout = play(chatml, "causal", "react", [], SEEN, limits=TIGHT, engine=TooLong()).rollout
    assert rollout.trajectory.stop_reason is StopReason.CONTEXT_FULL and rollout.trajectory.outcome is not None
    assert rollout.samples == [] and rollout.trajectory.dropped_samples == {"response_too_long": 1}
    (output,) = to_outputs(rollout, chatml.tokenizer.eos_token_id, 1, validation=False)
    assert output.extra_fields["masked"] and output.response_mask == [0], "verl is handed a row that counts nowhere"
    assert output.extra_fields["trajectory"]["dropped_samples"] == {"response_too_long": 1}


def test_a_template_that_never_lets_the_policy_act_is_an_error(chatml):
    class Asking(ContextTemplate):
        def housekeeping(self):
            return SideCall("more", [{"role": "user", "content": "?"}], 8, self.timeline.prompt())

    with pytest.raises(RuntimeError, match="Asking asked for 8 calls in a row"):
        play(chatml, Asking, "react", said(chatml, "x"), SEEN)


class TestASummariserOfItsOwn:
    options = ContextSettings(summary_by="summariser", summary_tokens=40)

    def play(self, chatml, summariser):
        more = {"limits": TIGHT, "max_steps": 15, "options": self.options, "summariser": summariser}
        return play(chatml, "sliding_window", "react", said(chatml, "x"), SEEN, **more)

    def test_fails_the_attempt_if_it_fails(self, chatml):
        async def summarise(messages, max_tokens):
            raise EngineError("summariser: down")

        trajectory = self.play(chatml, summarise).rollout.trajectory
        assert trajectory.stop_reason is StopReason.LLM_ERROR and "summariser: down" in trajectory.error

    def test_must_be_there_if_it_is_wanted(self, chatml):
        with pytest.raises(RuntimeError, match="no model plays that role here"):
            self.play(chatml, None)


@dataclass
class ChatModel:
    reply: ChatReply

    async def converse(self, request_id, messages, sampling_params):
        return self.reply


def test_what_cannot_be_encoded_of_a_chat_models_reply_is_replaced(chatml):
    played = play(chatml, "causal", "react", [], SEEN, engine=ChatModel(ChatReply("a\ud800b")), max_steps=1)
    assert played.env.given == ["a?b"]


def test_a_reply_without_a_word_is_an_error_of_the_model(chatml):
    played = play(chatml, "causal", "react", [], SEEN, engine=ChatModel(ChatReply("", truncated=True)))
    assert played.rollout.trajectory.stop_reason is StopReason.LLM_ERROR

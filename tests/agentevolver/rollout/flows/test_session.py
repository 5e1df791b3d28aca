"""The session: what cannot be trained on or encoded is no crash."""

from dataclasses import dataclass

from agentevolver.rollout.engine import Generated
from agentevolver.rollout.policy import ChatReply
from agentevolver.rollout.rows import to_outputs
from agentevolver.types import StopReason
from context_manager.template import ContextLimits
from tests.agentevolver.rollout.flows.harness import play

SEEN = [("user", "o" * 50, False)]
TIGHT = ContextLimits(600, 600, 1_300, 48, 60)


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


@dataclass
class ChatModel:
    reply: ChatReply

    async def converse(self, request_id, messages, sampling_params):
        return self.reply


def test_what_cannot_be_encoded_of_a_chat_models_reply_is_replaced(chatml):
    played = play(chatml, "causal", "react", [], SEEN, engine=ChatModel(ChatReply("a\ud800b")), max_steps=1)
    assert played.env.given == ["a?b"]

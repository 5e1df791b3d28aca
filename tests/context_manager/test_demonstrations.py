"""Demonstrations: the ids of a recorded conversation are those that a rollout of it would have, for real templates."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from context_manager.chat import ChatRenderer, ChatTemplateError
from context_manager.demonstrations import demonstration
from context_manager.settings import ContextLimits
from context_manager.template import CausalTemplate
from tests.chat_tokenizers import CHATML, build_tokenizer
from tests.real_tokenizers import FAMILIES
from tests.real_tokenizers import build_real as tokenizer_of

LIMITS = ContextLimits(10**6, 10**6, 10**6, 10**5, 10**5)
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "-", "parameters": {"type": "object", "properties": {"at": {}}}},
}
CALL = {"id": "c00001000", "type": "function", "function": {"name": "look", "arguments": '{"at": "the door"}'}}


def rolled_out(renderer: ChatRenderer, messages: list[dict]) -> tuple[list[int], list[int]]:
    """The ids and the mask of the sample of a rollout in which the policy says what the messages say."""
    context = CausalTemplate(renderer, LIMITS)
    first = next(place for place, message in enumerate(messages) if message["role"] == "assistant")
    context.start(messages[:first])
    for message in messages[first:]:
        if message["role"] == "assistant":
            context.next_prompt()
            sampled = renderer.reply(message)
            context.record(sampled, [0.0] * len(sampled), len(context.recorder.snapshots))
            if message.get("tool_calls"):
                context.called(message["tool_calls"])
        else:
            context.observe([message])
    (sample,) = context.samples()
    mask = [0] * len(sample.prompt_ids) + sample.response_mask
    return [*sample.prompt_ids, *sample.response_ids], mask


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=10, deadline=None)
@given(said=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4))
def test_a_conversation_is_rendered_as_its_rollout(family, said):
    renderer = ChatRenderer(tokenizer_of(family))
    messages = [{"role": "user", "content": "go"}]
    for text in said:
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"so {text}"}]
    try:
        wanted = rolled_out(renderer, messages[:-1])
    except ValueError as error:
        pytest.skip(f"{family} cannot be continued: {error}")
    made = demonstration(renderer, messages)
    assert (made.ids, made.mask) == wanted


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3", "llama3_1"])
def test_calls_are_said_as_the_family_says_them(family):
    renderer = ChatRenderer(tokenizer_of(family)).for_tools([TOOL])
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": CALL["id"], "name": "look", "content": "it is open"},
        {"role": "assistant", "content": "open"},
    ]
    made = demonstration(renderer, messages)
    assert (made.ids, made.mask) == rolled_out(renderer, messages)
    imitated = renderer.tokenizer.decode([token for token, own in zip(made.ids, made.mask, strict=True) if own])
    assert "the door" in imitated and "open" in imitated and "it is open" not in imitated


def test_messages_with_the_weight_0_are_read_and_not_imitated():
    renderer = ChatRenderer(tokenizer_of("qwen2_5"))
    said = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "wrong", "weight": 0},
        {"role": "user", "content": "err"},
        {"role": "assistant", "content": "right", "weight": 1},
    ]
    made = demonstration(renderer, said)
    plain = demonstration(renderer, [{key: one[key] for key in ("role", "content")} for one in said])
    assert made.ids == plain.ids and sum(made.mask) < sum(plain.mask)
    imitated = renderer.tokenizer.decode([i for i, on in zip(made.ids, made.mask, strict=True) if on])
    assert imitated == "right<|im_end|>"
    with pytest.raises(ValueError, match="weight 0"):
        demonstration(renderer, said[:2])


def test_a_call_that_the_template_leaves_out_is_refused():
    said = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    with pytest.raises(ChatTemplateError, match="writes no tool calls"):
        demonstration(ChatRenderer(build_tokenizer(CHATML, "<|im_end|>")), said)


def test_a_thought_that_the_prompt_opens_is_not_opened_again():
    opening = CHATML.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}")
    renderer = ChatRenderer(build_tokenizer(opening, "<|im_end|>"))
    made = demonstration(
        renderer, [{"role": "user", "content": "go"}, {"role": "assistant", "content": "<think>\nso\n</think>\n\ngo"}]
    )
    assert renderer.tokenizer.decode(made.ids).count("<think>") == 1

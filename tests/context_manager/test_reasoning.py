"""The reasoning template: a thought is there for its own turn, trained with it, and gone from every later prompt."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from context_manager.chat import ChatRenderer
from context_manager.reasoning import STYLES, ReasoningTemplate, without_thought
from context_manager.settings import ContextSettings
from tests.chat_tokenizers import CHATML, build_tokenizer
from tests.context_manager.episodes import begin, say, shown, turn

THINK = STYLES["think"]
WORD = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=8)


@settings(max_examples=30, deadline=None)
@given(turns=st.lists(st.tuples(st.booleans(), WORD), min_size=1, max_size=6))
def test_later_prompts_read_as_if_nobody_had_ever_thought(renderer, roomy, turns):
    thinking, plain = begin(ReasoningTemplate, renderer, roomy), begin(ReasoningTemplate, renderer, roomy)
    for step, (thinks, word) in enumerate(turns):
        thought = f"<think>{word}</think>\n\n" if thinks else ""
        assert turn(thinking, f"{thought}do {word}", "seen", step) == turn(plain, f"do {word}", "seen", step)


def test_a_reply_that_begins_inside_a_thought_is_understood(thinking, roomy):
    context = begin(ReasoningTemplate, thinking, roomy)
    first = turn(context, "idea\n</think>\n\nact", "seen", 0)
    assert shown(context, first).endswith("<think>\n"), "the generation prompt opens the thought"
    assert context.action("idea\n</think>\n\nact") == "act"
    later = shown(context, say(context, "cut off in the thou", 1, closed=False))
    assert "idea" not in later and "assistant\nact<|im_end|>" in later
    assert context.action("cut off in the thou") == ""


def test_tags_that_are_special_tokens_are_seen_although_the_text_does_not_show_them(roomy):
    tokenizer = build_tokenizer(CHATML, "<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]"]})
    context = begin(ReasoningTemplate, ChatRenderer(tokenizer), roomy, ContextSettings(think_style="mistral"))
    turn(context, "[THINK]idea[/THINK]act", "seen", 0)
    assert context.messages[2]["content"] == "ideaact", "what decoding makes of it"
    assert context.action("ideaact") == "act"
    assert "idea" not in shown(context, context.next_prompt())


@pytest.mark.parametrize("style", STYLES)
def test_every_style_is_stripped(renderer, roomy, style):
    opening, closing = STYLES[style]
    context = begin(ReasoningTemplate, renderer, roomy, ContextSettings(think_style=style))
    turn(context, f"{opening} idea {closing} act", "seen", 0)
    prompt = shown(context, say(context, "x", 1))
    assert "idea" not in prompt and "assistant\nact<|im_end|>" in prompt


@pytest.mark.parametrize(
    ("text", "inside", "left"),
    [
        ("  act ", False, "  act "),
        ("a</think>\n\nact", True, "act"),
        ("a</think>\n\nact", False, "act"),
        ("<think>a</think><think>b</think>act", False, "act"),
        ("first <think>a", False, "first"),
        ("never closed", True, ""),
    ],
)
def test_what_a_reply_says_beyond_its_thoughts(text, inside, left):
    assert without_thought(text, THINK, inside=inside) == left

"""The tokenizer for models whose own is not at hand."""

import re

from hypothesis import given
from hypothesis import strategies as st

from context_manager.chat import CHARS_PER_TOKEN, ChatRenderer, PlainTokenizer
from tests.context_manager.episodes import OPENING

TEXT = st.text(st.characters(exclude_categories=()), max_size=60)


@given(text=TEXT)
def test_text_comes_back_as_it_was(text):
    tokenizer = PlainTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == -(-len(text) // CHARS_PER_TOKEN), "about four characters a token"


@given(
    text=st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "<|im", "_end|>", "a", "\n", "\0"]), max_size=12).map(
        "".join
    )
)
def test_markers_are_tokens_of_their_own_and_can_be_left_out(text):
    tokenizer = PlainTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == re.sub(
        r"<\|im_(start|end)\|>", "", text
    )


def test_a_conversation_can_be_taken_apart_and_put_together():
    renderer = ChatRenderer(PlainTokenizer())
    assert renderer.head(OPENING) + renderer.generation == renderer.opening(OPENING)
    text = renderer.tokenizer.decode(
        renderer.opening(OPENING) + renderer.continuation([{"role": "user", "content": "x"}], closed=False)
    )
    assert text == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
        "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    )

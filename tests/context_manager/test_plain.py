"""The tokenizer for models whose own is not at hand."""

import re

from hypothesis import given
from hypothesis import strategies as st

from context_manager.chat import CHARS_PER_TOKEN, PlainTokenizer

TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
PIECE = st.one_of(TEXT, st.sampled_from(["<|im_start|>", "<|im_end|>", "<|im", "_end|>"]))


@given(text=st.lists(PIECE, max_size=12).map("".join))
def test_text_comes_back_as_it_was_and_markers_can_be_left_out(text):
    tokenizer = PlainTokenizer()
    ids, bare = tokenizer.encode(text), re.sub(r"<\|im_(start|end)\|>", "", text)
    assert tokenizer.decode(ids) == text and tokenizer.decode(ids, skip_special_tokens=True) == bare
    assert text != bare or len(ids) == -(-len(text) // CHARS_PER_TOKEN), "about four characters a token"

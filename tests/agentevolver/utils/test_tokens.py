"""Ids and texts by a tokenizer's backend are those of its Python methods."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.utils.tokens import decoder_of, encoder_of
from context_manager.plain import PlainTokenizer
from tests.chat_tokenizers import CHATML, build_tokenizer
from tests.real_tokenizers import build_real

NAMES = ["qwen2_5", "llama3_1"]
texts = st.lists(
    st.text(max_size=12)
    | st.sampled_from(["<|im_end|>", "<|eot_id|>", "<tool_call>", " ", "\n\n", " ,", " n't", "é", "\u00ad"]),
    max_size=8,
).map("".join)


@pytest.fixture(scope="module", params=NAMES)
def tokenizer(request):
    return build_real(request.param)


@pytest.mark.thorough
@given(text=texts)
@settings(max_examples=100, deadline=None)
def test_ids_and_texts_are_the_tokenizers_own(tokenizer, text):
    ids = encoder_of(tokenizer)(text)
    assert ids == tokenizer.encode(text, add_special_tokens=False)
    for skip in (False, True):
        assert decoder_of(tokenizer)(ids, skip) == tokenizer.decode(ids, skip_special_tokens=skip)
        exact = tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert decoder_of(tokenizer, clean_up=False)(ids, skip) == exact


def test_what_another_call_has_set_does_not_cut_a_text():
    tokenizer = build_tokenizer(CHATML, "<|im_end|>")
    encode, text = encoder_of(tokenizer), "one two three four " * 20
    wanted = tokenizer.encode(text, add_special_tokens=False)
    tokenizer(text, truncation=True, max_length=4, padding="max_length")
    assert encode(text) == wanted


def test_a_method_of_a_subclass_and_one_of_an_object_are_asked():
    plain = build_tokenizer(CHATML, "<|im_end|>")

    class Reversing(type(plain)):
        def encode(self, text, **options):
            return super().encode(text, **options)[::-1]

        def decode(self, ids, **options):
            return super().decode(ids[::-1], **options)

    ids = encoder_of(plain)("one two")
    other = build_tokenizer(CHATML, "<|im_end|>")
    other.__class__ = Reversing
    assert encoder_of(other)("one two") == ids[::-1] and decoder_of(other)(ids[::-1], False) == "one two"
    patched = build_tokenizer(CHATML, "<|im_end|>")
    patched.encode = lambda text, add_special_tokens: [7]
    assert encoder_of(patched)("one two") == [7]


def test_a_tokenizer_of_another_make_is_asked():
    tokenizer = PlainTokenizer()
    assert decoder_of(tokenizer)(encoder_of(tokenizer)("one two"), False) == "one two"

"""The tokenizer round-trips anything in normal form C, and a conversation's ids are its turns' ids put together."""

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentevolver.recipes.offline.seed.data import END, PAD, TURN, build_tokenizer, open_turn, opening_text, pieces
from context_manager.chat import ChatRenderer
from context_manager.exactness import check_template
from context_manager.settings import ContextSettings

PLAIN = st.text(st.characters(codec="utf-8"), max_size=60).filter(lambda t: not any(s in t for s in (PAD, TURN, END)))


@settings(deadline=None, max_examples=300)
@given(text=PLAIN)
@example("\ufa70")
def test_any_text_round_trips_in_the_normal_form_of_qwens_tokenizers(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == unicodedata.normalize("NFC", text)


@settings(deadline=None)
@given(text=st.text(st.sampled_from("0123456789 n\nab"), max_size=40))
def test_digits_and_line_breaks_are_tokens_of_their_own(tokenizer, text):
    shown = [tokenizer.decode([i]) for i in tokenizer.encode(text, add_special_tokens=False)]
    assert all(len(piece) == 1 for piece in shown if any(c in "0123456789\n" for c in piece))


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_the_template_of_a_whole_conversation_equals_its_pieces_token_for_token(tokenizer, data):
    messages = [{"role": r, "content": data.draw(PLAIN)} for r in ("system", "user")]
    for _ in range(data.draw(st.integers(1, 3))):
        messages += [{"role": r, "content": data.draw(PLAIN)} for r in ("assistant", "user")]
    messages.pop()
    whole = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    parts = [i for text, _ in pieces(messages) for i in tokenizer.encode(text, add_special_tokens=False)]
    assert whole == parts + tokenizer.encode("\n", add_special_tokens=False)


def test_a_prompt_is_extended_by_what_was_sampled_and_the_next_turn(tokenizer):
    def ids(text):
        return tokenizer.encode(text, add_special_tokens=False)

    opening = [{"role": "system", "content": "site k7"}, {"role": "user", "content": "tip no login\npay bob 12"}]
    prompt = tokenizer.apply_chat_template(opening, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert prompt == ids(opening_text(opening))
    sampled = [*ids("bank.pay bob 12"), tokenizer.eos_token_id]
    turns = [*opening, {"role": "assistant", "content": "bank.pay bob 12"}, {"role": "user", "content": "ok"}]
    then = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert then == prompt + sampled + ids(open_turn([{"role": "user", "content": "ok"}]))


def test_special_tokens_have_their_roles(tokenizer):
    assert (tokenizer.eos_token, tokenizer.pad_token) == (END, PAD)
    assert tokenizer.encode(TURN, add_special_tokens=False) == [tokenizer.convert_tokens_to_ids(TURN)]
    assert len(tokenizer) <= 1024


def test_messages_out_of_turn_are_refused():
    messages = [{"role": r, "content": "x"} for r in ("system", "user", "assistant", "assistant")]
    with pytest.raises(ValueError, match="take turns"):
        pieces(messages)


def test_a_poor_corpus_is_refused():
    with pytest.raises(ValueError, match="corpus"):
        build_tokenizer(["a b c"])


@pytest.mark.parametrize("name", ["causal", "reasoning", "sliding_window", "self_managed"])
def test_the_policy_reads_token_for_token_what_its_chat_template_renders(tokenizer, name):
    assert check_template(ChatRenderer(tokenizer), ContextSettings(context_template=name)) == []

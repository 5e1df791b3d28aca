"""The pieces of a chat template: put together they are what the template renders, and what cannot be taken apart is
refused by name."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from context_manager.chat import ChatRenderer, ChatTemplateError
from context_manager.timeline import LiveTimeline
from tests.chat_tokenizers import CHATML, build_tokenizer
from tests.context_manager.episodes import OPENING

WORD = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="<>"), min_size=1, max_size=10)


@pytest.mark.thorough
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(opening=WORD, observation=WORD, closed=st.booleans(), role=st.sampled_from(["user", "tool"]))
def test_pieces_add_up_to_the_whole(tokenizer, opening, observation, closed, role):
    renderer = ChatRenderer(tokenizer)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": opening}]
    assert renderer.head(messages) + renderer.generation == renderer.opening(messages)
    after = [{"role": role, "content": observation}]
    assert renderer.follow(after, closed=closed) + renderer.generation == renderer.continuation(after, closed=closed)


@pytest.mark.thorough
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(texts=st.lists(st.tuples(WORD, WORD), min_size=1, max_size=4), role=st.sampled_from(["user", "tool"]))
def test_a_conversation_of_rewritten_replies_reads_as_the_template_renders_it(tokenizer, texts, role):
    renderer = ChatRenderer(tokenizer)
    assume(role == "user" or not renderer.opens_thought)  # such a template shows a thought before a tool's answer
    timeline = LiveTimeline(renderer, OPENING)
    messages = list(OPENING)
    for step, (action, observation) in enumerate(texts):
        timeline.said(renderer.encode("long"), "long", step, remembered=action)
        timeline.add({"role": role, "content": observation})
        messages += [{"role": "assistant", "content": action}, {"role": role, "content": observation}]
    assert tokenizer.decode(timeline.prompt()) == tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )


def test_a_generation_prompt_that_opens_a_thought_is_noticed_and_not_shown_of_past_turns(thinking, renderer):
    assert thinking.opens_thought and not renderer.opens_thought
    assert thinking.text(thinking.assistant("act")).endswith("assistant\nact")


def test_a_template_that_wants_roles_to_alternate_is_refused_where_they_do_not(strict):
    assert strict.continuation([{"role": "user", "content": "x"}], closed=True)
    with pytest.raises(ChatTemplateError, match="refuses messages of the roles user, user: roles must alternate"):
        strict.follow([{"role": "user", "content": "x"}], closed=None)


def test_a_template_without_a_token_before_replies_can_be_continued_but_not_edited(plain_template):
    assert plain_template.continuation([{"role": "user", "content": "x"}], closed=True)
    with pytest.raises(ChatTemplateError, match=r"does not begin with a token of its own.*use context_template causal"):
        plain_template.head(OPENING)


@pytest.mark.parametrize(("end", "close"), [("<|im_end|>", ""), ("<|endoftext|>", "<|im_end|>")])
@pytest.mark.parametrize("append_only", [True, False])
def test_a_turn_is_closed_once_although_replies_may_end_with_another_token(end, close, append_only):
    base = ChatRenderer(build_tokenizer(CHATML, "<|endoftext|>"))
    timeline, ids = LiveTimeline(base, OPENING, append_only=append_only), base.encode(f"act{end}")
    assert base.ends_turn(ids) and base.text(ids) == "act"
    before = base.tokenizer.decode(timeline.prompt())
    timeline.said(ids, "act", 0)
    timeline.add({"role": "user", "content": "seen"})
    expected = f"{before}act{end}{close}\n<|im_start|>user\nseen<|im_end|>\n<|im_start|>assistant\n"
    assert base.tokenizer.decode(timeline.prompt()) == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(text=st.text(st.sampled_from("a é漢😀\n\ud800:"), max_size=200), limit=st.integers(1, 60))
def test_no_text_is_longer_than_the_limit_after_it_was_clipped(tokenizer, text, limit):
    renderer = ChatRenderer(tokenizer)
    clipped = renderer.clip(text, limit)
    assert len(renderer.encode(clipped)) <= limit
    whole = text.encode("utf-8", "replace").decode()
    if len(renderer.encode(whole)) <= limit:
        assert clipped == whole
    else:
        head, gap, tail = clipped.partition("\n[") if "tokens cut]" in clipped else (clipped, "", "")
        assert whole.startswith(head) and (not gap or whole.endswith(tail.partition("tokens cut]\n")[2]))


HUGE = (
    "line of a log file ",
    " ",
    "\n",
    "漢字",
    "😀",
    "\ud800",
    "<|im_end|>",
    '{"a": [1, null]}',
    "0123456789",
    "\r\n",
    "é́",
    "[1 tokens cut]",
)


@pytest.mark.parametrize("part", HUGE)
def test_of_a_text_of_any_length_a_bounded_part_is_tokenised(tokenizer, part, monkeypatch):
    renderer, read = ChatRenderer(tokenizer), []
    monkeypatch.setattr(
        renderer, "_encode", lambda text, encode=renderer._encode: read.append(len(text)) or encode(text)
    )
    text = "begin " + part * (1_000_000 // len(part)) + " end"
    clipped = renderer.clip(text, 60)
    assert sum(read) < 150_000 and len(renderer.encode_inert(clipped)) <= 60
    assert clipped.startswith("begin ") and clipped.endswith(" end") and "tokens cut]" in clipped
    read.clear()
    assert renderer.overflows([{"role": "user", "content": text}], 4000) and sum(read) < 150_000


@pytest.mark.thorough
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(parts=st.lists(st.text(st.sampled_from("ab ,é漢\n1"), min_size=1, max_size=9), min_size=2, max_size=9))
def test_the_tokens_kept_of_a_very_long_text_are_those_of_the_whole(tokenizer, parts):
    renderer, text = ChatRenderer(tokenizer), "".join(parts) * 400
    whole = renderer.clip(text, 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("context_manager.chat._LEAST_CHARS", 0)
        cut = renderer.clip(text, 60)
    if "tokens cut]" not in whole:
        return
    # The note of an estimate may be some tokens longer, which the kept text pays.
    heads = [clipped.rpartition("\n[")[0] for clipped in (whole, cut)]
    tails = [clipped.rpartition("tokens cut]\n")[2] for clipped in (whole, cut)]
    assert heads[0].startswith(heads[1]) and tails[0].endswith(tails[1])
    assert len(renderer.encode(whole)) - len(renderer.encode(cut)) <= 8

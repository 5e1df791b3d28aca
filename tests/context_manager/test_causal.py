"""The causal template: what is trained on is what the engine saw and sampled, token for token."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from context_manager.chat import ChatRenderer, ChatTemplateError
from context_manager.template import CausalTemplate, ContextFull, ContextLimits

ROOMY = ContextLimits(
    max_prompt_tokens=10_000,
    max_response_tokens=10_000,
    max_model_len=20_000,
    max_new_tokens=64,
    max_observation_tokens=200,
)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\u241e"), max_size=40)


@st.composite
def episodes(draw):
    """Opening texts, and turns of (sampled ids without the close, whether the turn was closed, observation)."""
    ids = st.lists(st.integers(0, 255), min_size=1, max_size=20)
    return draw(TEXT), draw(st.lists(st.tuples(ids, st.booleans(), TEXT), min_size=1, max_size=6))


def play(tokenizer, opening, turns, limits=ROOMY):
    """Run an episode; returns the template and, per call, the prompt that was sent and the ids and log-probs that were
    sampled."""
    context = CausalTemplate(ChatRenderer(tokenizer), limits)
    context.start([{"role": "system", "content": "s"}, {"role": "user", "content": opening}])
    calls = []
    for step, (ids, closed, observation) in enumerate(turns):
        prompt = context.next_prompt()
        sampled = [*ids, tokenizer.eos_token_id] if closed else ids
        log_probs = [-(step + i / 100) for i in range(len(sampled))]
        context.record(sampled, log_probs, step)
        calls.append((list(prompt), sampled, log_probs))
        context.observe([{"role": "user", "content": observation}])
    return context, calls


@pytest.mark.thorough
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(episode=episodes())
def test_the_sample_holds_the_ids_that_the_engine_saw_and_sampled(tokenizer, episode):
    context, calls = play(tokenizer, *episode)
    (sample,) = context.samples()
    whole = sample.prompt_ids + sample.response_ids
    for step, (prompt, sampled, log_probs) in enumerate(calls):
        start = len(prompt)
        assert whole[:start] == prompt
        assert whole[start : start + len(sampled)] == sampled
        here = range(start - len(sample.prompt_ids), start - len(sample.prompt_ids) + len(sampled))
        assert [sample.log_probs[i] for i in here] == log_probs
        assert {sample.step_ids[i] for i in here} == {step}


@pytest.mark.thorough
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(episode=episodes())
def test_the_mask_covers_exactly_the_sampled_tokens(tokenizer, episode):
    context, calls = play(tokenizer, *episode)
    (sample,) = context.samples()
    assert [t for t, m in zip(sample.response_ids, sample.response_mask, strict=True) if m] == [
        t for _, s, _ in calls for t in s
    ]
    assert [step >= 0 for step in sample.step_ids] == [m == 1 for m in sample.response_mask]
    assert sample.response_mask[-1] == 1, "what follows the last action was never shown to the policy"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    texts=st.lists(
        st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12), min_size=1, max_size=5
    ),
    opening=TEXT,
)
def test_a_conversation_of_closed_turns_reads_as_the_template_would_render_it(chatml, texts, opening):
    turns = [(chatml.encode(text, add_special_tokens=False), True, f"seen {text}") for text in texts]
    context, calls = play(chatml, opening, turns)
    rendered = chatml.apply_chat_template(context.messages[:-2], tokenize=False, add_generation_prompt=True)
    assert chatml.decode(calls[-1][0]) == rendered


def test_a_reply_cut_by_the_limit_is_closed_outside_the_mask(chatml):
    context, _ = play(chatml, "go", [([65, 66], False, "ok"), ([67], True, "bye")])
    (sample,) = context.samples()
    closes = [i for i, token in enumerate(sample.response_ids) if token == chatml.eos_token_id]
    assert sample.response_mask[closes[0]] == 0, "the close after the cut reply was not sampled"
    assert sample.response_mask[closes[-1]] == 1, "the last close was"


def test_a_full_context_leaves_the_recorded_samples_intact(chatml):
    limits = ContextLimits(10_000, 120, 10_000, 64, 100)
    context, calls = play(chatml, "go", [([65], True, "z" * 90)], limits)
    with pytest.raises(ContextFull):
        context.next_prompt()
    (sample,) = context.samples()
    assert sample.response_ids == calls[0][1]


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


def test_a_template_that_rewrites_history_is_refused_by_name(chatml):
    broken = chatml.__class__(
        tokenizer_object=chatml.backend_tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    broken.chat_template = "{{ messages | length }}"
    with pytest.raises(ChatTemplateError):
        ChatRenderer(broken).continuation([{"role": "user", "content": "x"}], closed=True)

"""Calls and their answers stay together, or go together, whatever a context template does to the conversation; and what
was sampled of a reply that called stays as it was."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from context_manager.chat import ChatRenderer
from context_manager.messages import paired
from context_manager.reasoning import ReasoningTemplate
from context_manager.self_managed import SelfManagedTemplate
from context_manager.settings import ContextSettings
from context_manager.sliding_window import SlidingWindowTemplate
from context_manager.template import CausalTemplate, ContextLimits
from context_manager.timeline import LiveTimeline
from tests.chat_tokenizers import build_tokenizer
from tests.real_tokenizers import build_family
from tests.tools_of_families import FIND, TOOL_FAMILIES, answer, call

LIMITS = ContextLimits(20_000, 20_000, 40_000, 64, 400)
OPENING = [{"role": "system", "content": "s"}, {"role": "user", "content": "go"}]
# Each says in its own way that an answer without its call, or a call without its answer, is none.
PAIRING = (
    "{%- for m in messages -%}"
    "{%- if m.role == 'tool' -%}{%- set ns = namespace(found=false) -%}"
    "{%- for o in messages[:loop.index0] -%}{%- for c in o.tool_calls or [] -%}"
    "{%- if c.id == m.tool_call_id -%}{%- set ns.found = true -%}{%- endif -%}{%- endfor -%}{%- endfor -%}"
    "{%- if not ns.found -%}{{ raise_exception('an answer to no call') }}{%- endif -%}{%- endif -%}"
    "{%- for c in m.tool_calls or [] -%}{%- set ns = namespace(found=false) -%}"
    "{%- for o in messages -%}{%- if o.role == 'tool' and o.tool_call_id == c.id -%}{%- set ns.found = true -%}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if not ns.found -%}{{ raise_exception('a call without an answer') }}{%- endif -%}{%- endfor -%}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- if m.tool_calls -%}{{ m.tool_calls | tojson }}{%- endif -%}{{ '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)


@pytest.fixture(scope="module")
def strict():
    return ChatRenderer(build_tokenizer(PAIRING, "<|im_end|>"))


def acted(context, step, text="act", *, calls=1, user=""):
    prompt = context.next_prompt()
    ids = [*context.renderer.encode(text), context.renderer.tokenizer.eos_token_id]
    said = context.record(ids, [-0.5] * len(ids), step)
    made = [call(10 * step + place) for place in range(calls)]
    if made:
        context.called(made, said)
    after = [answer(10 * step + place, f"seen{step}.{place}") for place in range(calls)]
    context.observe([*after, *([{"role": "user", "content": user}] if user or not calls else [])])
    return prompt


def begun(template, renderer, options=None, limits=LIMITS):
    context = template(renderer, limits, options or ContextSettings())
    context.offer([FIND])
    context.start(OPENING)
    return context


def grown(renderer, turns):
    timeline = LiveTimeline(renderer, OPENING)
    for step, calls in enumerate(turns):
        timeline.said([*renderer.encode(f"act{step}"), renderer.tokenizer.eos_token_id], f"act{step}", step)
        if calls:
            timeline.called([call(10 * step + place) for place in range(calls)])
        for place in range(calls):
            timeline.add(answer(10 * step + place, f"seen{step}.{place}"))
        if not calls:
            timeline.add({"role": "user", "content": f"seen{step}"})
    return timeline


def whole(timeline):
    """All that stands between the replies, rendered by a template that refuses half a pair; raises if it does."""
    timeline.renderer.render(timeline.chat())
    return timeline.renderer.tokenizer.decode(timeline.prompt())


def together(timeline):
    """Whether every call that is shown has all its answers, and every answer its call."""
    shown = [message.to_dict() for message in timeline.messages]
    calls = {one["id"] for message in shown for one in message.get("tool_calls", ())}
    return calls == {message["tool_call_id"] for message in shown if message["role"] == "tool"}


@pytest.mark.thorough
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(turns=st.lists(st.integers(0, 3), min_size=1, max_size=6), data=st.data())
def test_dropping_any_messages_leaves_no_half_of_a_pair(strict, turns, data):
    timeline = grown(strict, turns)
    gone = data.draw(st.lists(st.sampled_from(timeline.messages), unique_by=id))
    pinned = data.draw(st.lists(st.sampled_from(timeline.messages), unique_by=id, max_size=2))
    timeline.drop(gone)
    assert together(timeline) and not set(gone) & set(timeline.messages)
    kept = [timeline.pin(message) for message in pinned if message in timeline.messages]
    timeline.drop(timeline.older(1))
    assert together(timeline) and set(kept) <= set(timeline.messages)
    whole(timeline)


def test_the_answers_to_a_reply_that_was_rewritten_are_the_users(strict):
    timeline = grown(strict, [1, 1])
    timeline.rewrite(timeline.messages[0], "short")
    text = whole(timeline)
    assert "<|im_start|>assistant\nshort<|im_end|>\n<|im_start|>user\nseen0.0<|im_end|>" in text


def test_messages_are_paired_for_chat_models():
    said = [{"role": "assistant", "content": "", "tool_calls": [call(0), call(1)]}, answer(0), answer(7), answer(9)]
    shown = paired(said, {call(n)["id"] for n in (0, 1, 7)})
    assert shown[0]["tool_calls"] == [call(0)] and [m["role"] for m in shown[1:]] == ["tool", "user", "tool"]
    (alone,) = paired(said[:1], set())
    assert "tool_calls" not in alone


def test_a_window_goes_on_with_pairs_alone(strict):
    context = begun(SlidingWindowTemplate, strict, ContextSettings(summary_by="nobody", context_trigger_tokens=600))
    for step in range(12):
        acted(context, step, "act" + "x" * 30, calls=step % 3)
        assert together(context.timeline)
    assert any(edit["kind"] == "drop" for edit in context.edits)


@pytest.mark.parametrize(
    ("commands", "kept"),
    [
        ("remove m1", [3, 4]),
        ("remove m2", [1, 2, 3, 4]),
        ("keep m2\nremove m1", [1, 2, 3, 4]),
        ("compress m2: s", [1, 2, 3, 4]),
    ],
)
def test_what_the_policy_says_of_half_a_pair_breaks_none(strict, commands, kept):
    context = begun(SelfManagedTemplate, strict)
    acted(context, 0, "a longer act")
    acted(context, 1)
    acted(context, 2, f"<context>\n{commands}\n</context>act")
    assert [m.number for m in context.timeline.messages if m.number < 5] == kept
    text = context.renderer.tokenizer.decode(context.next_prompt())
    context.renderer.render(context.chat())
    if commands == "remove m2":
        assert "[m2] (removed)" in text and "seen0" not in text


THINKERS = ("qwen3", "qwen3_5_think", "glm4moe", "llama3_1")


@pytest.mark.parametrize("family", THINKERS)
def test_a_thought_goes_and_the_call_stays_as_it_was_sampled(family):
    renderer = ChatRenderer(build_family(TOOL_FAMILIES[family]))
    context = begun(ReasoningTemplate, renderer)
    context.next_prompt()
    opened = "" if context.renderer.opens_thought else "<think>"
    # As no template would write it: the spaces show that nothing was rendered again.
    said = '<tool_call>{"name":   "find", "arguments":{ "q":"x"}}</tool_call>'
    if family == "llama3_1":
        said = '<|python_tag|>find.call( q = "x")'
    close = context.renderer._root._call_close[0]
    ids = [*renderer.encode(f"{opened}\nhm\n</think>\n\n{said}"), close]
    text = context.record(ids, [-0.1] * len(ids), 0)
    context.called([call()], "")
    context.observe([answer()])
    later = context.next_prompt()
    rest = [*renderer.encode(said), close]
    assert "hm" in text and "hm" not in renderer.tokenizer.decode(later)
    at = next(i for i in range(len(later)) if later[i : i + len(rest)] == rest)
    assert renderer.tokenizer.decode(later[at + len(rest) :]).count("seen") == 1
    acted(context, 1)
    assert [sample.steps for sample in context.samples()] == [[0], [1]]
    assert context.chat()[2]["tool_calls"] == [call()] and "hm" not in context.chat()[2]["content"]


def test_other_tools_begin_another_sample_and_both_are_stripped_of_their_own_opening():
    renderer = ChatRenderer(build_family(TOOL_FAMILIES["qwen2_5"]))
    context = CausalTemplate(renderer, LIMITS)
    context.offer([FIND])
    context.start([{"role": "user", "content": "go, wisely"}], [{"role": "user", "content": "go"}])
    acted(context, 0)
    acted(context, 1)
    more = {"type": "function", "function": {**FIND["function"], "name": "seek"}}
    context.offer([FIND, more])
    prompt = acted(context, 2)
    assert '"seek"' in renderer.tokenizer.decode(prompt) and "seen0.0" in renderer.tokenizer.decode(prompt)
    samples = context.samples()
    assert [sample.steps for sample in samples] == [[0, 1], [2]] and not context.dropped
    prompts = [renderer.tokenizer.decode(sample.prompt_ids) for sample in samples]
    assert all("wisely" not in text for text in prompts) and ['"seek"' in text for text in prompts] == [False, True]
    context.offer([FIND, more])
    assert acted(context, 3)[: len(prompt)] == prompt, "the same tools change nothing"

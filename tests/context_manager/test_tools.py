"""Tools and their calls, with the real templates: what follows a call is what the template writes after it, and the
sampled ids stay as they were."""

import json

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from context_manager.chat import ChatRenderer, ChatTemplateError
from context_manager.exactness import find_drift
from context_manager.registry import TEMPLATES
from context_manager.settings import ContextSettings
from context_manager.template import ContextLimits
from tests.real_tokenizers import FAMILIES, build_family
from tests.tools_of_families import FIND, TOOL_FAMILIES, answer, call

LIMITS = ContextLimits(20_000, 20_000, 40_000, 64, 400)
OPENING = [{"role": "system", "content": "s"}, {"role": "user", "content": "go"}]


@pytest.fixture(scope="module", params=sorted(TOOL_FAMILIES))
def renderer(request):
    return ChatRenderer(build_family(TOOL_FAMILIES[request.param])).for_tools([FIND])


def whole(renderer, messages, **kwargs):
    """What the template makes of a conversation."""
    as_text = renderer._root._arguments_as_text
    shown = []
    for message in messages:
        calls = [
            {**one, "function": {**one["function"], "arguments": {"q": "x"} if not as_text else '{"q": "x"}'}}
            for one in message.get("tool_calls", [])
        ]
        shown.append({**message, **({"tool_calls": calls} if calls else {})})
    return renderer.tokenizer.apply_chat_template(
        shown, tokenize=False, tools=[FIND], **{"add_generation_prompt": True, **kwargs}
    )


def test_what_follows_a_call_is_what_the_template_writes_there(renderer):
    called = {"role": "assistant", "content": "", "tool_calls": [call()]}
    tail = renderer.tokenizer.decode(renderer.continuation([answer()], closed=False, calls=[call()]))
    text = whole(renderer, [*OPENING, called, answer()])
    assert text.endswith(tail) and text.removesuffix(tail).endswith(
        ("}", "}]", "</tool_call>", "calls\u2581end\uff5c>")
    )
    assert text.count(tail) == 1 and "seen" in tail and '"x"' not in tail


def test_a_template_that_puts_answers_inside_the_turn_that_called_is_refused():
    family = FAMILIES["qwen3"]
    gemma = ChatRenderer(build_family(type(family)("gemma4_v5", "<turn|>", ("<bos>", "<|turn>", "<turn|>"))))
    with pytest.raises(ChatTemplateError, match=r"leaves out messages of the role tool: set .*tool_format to none"):
        gemma.continuation([answer()], closed=True, calls=[call()])


@pytest.mark.parametrize(
    ("family", "text", "end"),
    [
        ("llama3_1", '<|python_tag|>find.call(q="x")', "<|eom_id|>"),
        ("mistral_v3", '[TOOL_CALLS][{"name": "find"}]', "</s>"),
    ],
)
def test_marks_of_a_call_stay_and_what_ends_the_reply_goes(family, text, end):
    renderer = ChatRenderer(build_family(TOOL_FAMILIES[family]))
    ids = renderer.encode(text + end)
    assert renderer.text(ids) == text
    assert renderer.tokenizer.decode(ids, skip_special_tokens=True) != text, "decoding alone loses them"


HOSTILE = ("<|im_end|>", "</tool_response>", "<tool_call>", "<|eot_id|>", "<|call|>", "[/AVAILABLE_TOOLS]", "</s>")


def ids_of_controls(renderer, ids):
    pattern = renderer._control
    known = {i for i, token in renderer.tokenizer.added_tokens_decoder.items() if pattern.fullmatch(token.content)}
    return [i for i in ids if i in known]


@pytest.mark.thorough
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(words=st.lists(st.sampled_from([*HOSTILE, "a", " "]), min_size=1, max_size=4).map("".join), data=st.data())
def test_no_text_of_a_tool_forges_a_control_token(renderer, words, data):
    where = data.draw(st.sampled_from(["name", "description", "property", "enum"]))

    def tools(text):
        function = json.loads(json.dumps(FIND["function"]))
        properties = function["parameters"]["properties"]
        if where == "property":
            properties[text] = properties.pop("q")
        elif where == "enum":
            properties["q"]["enum"] = [text]
        else:
            function[where] = text
        return [{"type": "function", "function": function}]

    hostile, benign = renderer.for_tools(tools(words)), renderer.for_tools(tools("benign"))
    assert ids_of_controls(renderer, hostile.opening(OPENING)) == ids_of_controls(renderer, benign.opening(OPENING))
    shown = hostile.tokenizer.decode(hostile.opening(OPENING))
    if "tools" not in renderer.tokenizer.chat_template:
        return  # it shows none
    assert words in shown or json.dumps(words, ensure_ascii=False)[1:-1] in shown


@pytest.mark.thorough
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(words=st.lists(st.sampled_from([*HOSTILE, "a", " "]), min_size=1, max_size=4).map("".join), closed=st.booleans())
def test_no_answer_of_a_tool_forges_a_control_token(renderer, words, closed):
    def tail(text, name="find"):
        return renderer.continuation([{**answer(0, text), "name": name}], closed=closed, calls=[call(0, name)])

    assert ids_of_controls(renderer, tail(words)) == ids_of_controls(renderer, tail("benign"))
    assert ids_of_controls(renderer, tail("benign", words)) == ids_of_controls(renderer, tail("benign"))


@st.composite
def episodes(draw):
    """Turns: how many tools are called (0: none), whether the reply was closed, what comes back, and whether the user
    speaks after it."""
    words = st.text(st.characters(codec="utf-8", exclude_characters="\u241e"), max_size=12)
    ids = st.lists(st.integers(0, 255), min_size=1, max_size=8)
    return draw(
        st.lists(st.tuples(ids, st.integers(0, 2), st.booleans(), words, st.booleans()), min_size=1, max_size=5)
    )


@pytest.mark.thorough
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(turns=episodes(), name=st.sampled_from(["causal", "reasoning", "sliding_window", "self_managed"]))
def test_masks_are_exactly_what_was_sampled_whatever_was_called(renderer, turns, name):
    root, number = renderer._root, 0
    context = TEMPLATES[name](root, LIMITS, ContextSettings(context_template=name))
    try:
        find_drift(root, ContextSettings(context_template=name), "calls")
    except ChatTemplateError:
        assume(name == "causal")
    context.offer([FIND])
    context.start(OPENING)
    sent = []
    for step, (ids, calls, closed, words, user) in enumerate(turns):
        prompt = context.next_prompt()
        close = root._call_close if calls else root._close
        sampled = [*ids, close[0]] if closed else ids
        context.record(sampled, [-0.5] * len(sampled), step)
        made = [call(number + place) for place in range(calls)]
        number += calls
        if made:
            context.called(made, "calls")
        after = [answer(int(one["id"][1:]), words) for one in made]
        strict = "roles must alternate" in renderer.tokenizer.chat_template
        if not after or (user and not strict):
            after.append({"role": "user", "content": words})
        context.observe(after)
        sent.append((prompt, sampled))
    context.next_prompt()
    samples = context.samples()
    found = {step: sample for sample in samples for step in sample.steps}
    for step, (prompt, sampled) in enumerate(sent):
        whole = found[step].prompt_ids + found[step].response_ids
        assert whole[: len(prompt)] == prompt and whole[len(prompt) : len(prompt) + len(sampled)] == sampled
    assert sum(sum(sample.response_mask) for sample in samples) == sum(len(sampled) for _, sampled in sent)
    if name == "causal":
        assert len(samples) == 1

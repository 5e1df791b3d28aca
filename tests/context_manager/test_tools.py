"""Tools and their calls, with the real templates: what follows a call is what the template writes after it, and the
sampled ids stay as they were."""

import pytest

from context_manager.chat import ChatRenderer, ChatTemplateError
from context_manager.messages import for_template
from context_manager.template import CausalTemplate, ContextLimits
from tests.real_tokenizers import FAMILIES, build_family, package_file
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


def test_there_is_one_renderer_for_a_list_of_tools_and_its_opening_shows_them(renderer):
    again = renderer.for_tools([dict(FIND)])
    assert (
        again is renderer and renderer.for_tools([]) is renderer._root and renderer._root.for_tools([FIND]) is renderer
    )
    assert renderer.tokenizer.decode(renderer.opening(OPENING)) == whole(renderer, OPENING)


def test_an_episode_of_calls_is_one_sample_whose_mask_is_what_was_sampled(renderer):
    context = CausalTemplate(renderer._root, LIMITS)
    context.offer([FIND])
    context.start(OPENING)
    sampled = []
    for step in range(3):
        context.next_prompt()
        close = renderer._root._call_close[0]
        ids = [*renderer.encode(f"I call {step}"), close]
        context.record(ids, [-0.5] * len(ids), step)
        context.called([call(step)], "I call")
        context.observe([answer(step, f"seen {step}")])
        sampled += ids
    (sample,) = context.samples()
    assert [i for i, m in zip(sample.response_ids, sample.response_mask, strict=True) if m] == sampled
    assert [m["role"] for m in context.chat()[2:]] == ["assistant", "tool"] * 3
    assert context.chat()[2]["tool_calls"] == [call(0)] and context.chat()[2]["content"] == "I call"


def test_a_template_that_puts_answers_inside_the_turn_that_called_is_refused():
    family = FAMILIES["qwen3"]
    gemma = ChatRenderer(build_family(type(family)("gemma4_v5", "<turn|>", ("<bos>", "<|turn>", "<turn|>"))))
    with pytest.raises(ChatTemplateError, match="leaves out messages of the role tool"):
        gemma.continuation([answer()], closed=True, calls=[call()])


@pytest.mark.parametrize(
    ("name", "file"),
    [("mistral_v3", "tekken_240911.json"), ("mistral_v7", "mistral_instruct_tokenizer_241114.model.v7")],
)
def test_the_templates_that_stand_for_mistrals_write_what_its_own_package_writes(name, file):
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    theirs = MistralTokenizer.from_file(str(package_file("mistral_common", "data", file)))
    ours = build_family(TOOL_FAMILIES[name])
    said = [
        *OPENING,
        {"role": "assistant", "content": "", "tool_calls": [call()]},
        answer(),
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "more"},
    ]
    for end in (2, 4, 6):
        request = ChatCompletionRequest(messages=said[:end], tools=[FIND])
        written = theirs.encode_chat_completion(request).text
        text = ours.apply_chat_template(
            [for_template(message) for message in said[:end]], tools=[FIND], tokenize=False, add_generation_prompt=True
        )
        # SentencePiece has a space before each text.
        assert text.replace(" ", "") == written.replace("\u2581", "").replace(" ", "")

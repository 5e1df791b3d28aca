"""Hermes' calls: what is one, what is meant as one and broken, and what is neither."""

import pytest

from agentevolver.rollout.tools.formats import tool_format
from tests.agentevolver.rollout.tools.replies import WEATHER, read, said
from tests.real_tokenizers import build_real

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
OSLO = ("get_weather", {"city": "Oslo"})
# Qwen3's tags are tokens; llama3_1's vocabulary has none of them.
EVERY = pytest.mark.parametrize("family", ["qwen3", "llama3_1"])


def hermes(text, family="qwen3"):
    return read("hermes", family, text)


@EVERY
def test_calls_are_read_and_the_text_around_them_stays(family):
    parsed = hermes(f"I look.\n{CALL}\n{CALL.replace('Oslo', 'Rio')}", family)
    assert said(parsed) == [OSLO, ("get_weather", {"city": "Rio"})]
    assert parsed.content == "I look." and not parsed.problems


def test_the_token_that_ends_the_reply_is_no_part_of_its_text():
    assert hermes(f"{CALL}<|im_end|>").content == ""
    assert hermes("Done.<|im_end|>").content == "Done."


@EVERY
@pytest.mark.parametrize(
    "arguments",
    [
        '{"n": 12345678901234567890, "x": 1.10, "e": 1e-9, "z": -0}',
        '{"text": "Zürich 東京 \\n \\" \\\\ \\u00e9 \\ud83d\\ude00"}',
        '{"html": "</tool_call><tool_call>{}</think><think>"}',
        "{ }",
    ],
)
def test_arguments_stay_as_written(family, arguments):
    parsed = hermes(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>', family)
    assert [(call.name, call.arguments) for call in parsed.calls] == [("f", arguments)] and not parsed.problems


@EVERY
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', "expected ',' or '}'"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>', "'a' stands twice"),
        ('<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "NaN is no JSON"),
        ('<tool_call>{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>", "too large"),
        ('<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>', "surrogate"),
        ('<tool_call>{"name": "f", "arguments": {}}', "</tool_call> was expected"),
        ('{"name": "f", "arguments": {}}</tool_call>', "without a <tool_call>"),
        ('```json\n{"name": "f", "arguments": {}}\n```', "between <tool_call> and </tool_call>"),
    ],
)
def test_a_broken_call_is_a_problem_in_words_and_stays_in_the_text(family, text, why):
    parsed = hermes(text, family)
    assert not parsed.calls and parsed.content == text.strip()
    assert len(parsed.problems) == 1 and why in parsed.problems[0] and len(parsed.problems[0]) < 300
    example = parsed.problems[0].partition(" Write ")[2].removesuffix(".")
    ((name, arguments),) = said(hermes(example, family))
    assert name == WEATHER.name and WEATHER.problem(arguments) is None


@EVERY
def test_what_follows_a_broken_call_is_read(family):
    parsed = hermes(f'<tool_call>{{"name": "f"\n{CALL}<tool_call>{{</tool_call>{CALL}', family)
    assert said(parsed) == [OSLO, OSLO] and len(parsed.problems) == 2


@EVERY
@pytest.mark.parametrize(
    "thought", [f"<think>{CALL}</think>", f"so {CALL} it is</think>", "<think>a <tool_call> b</think>"]
)
def test_what_stands_in_a_thought_is_no_call(family, thought):
    parsed = hermes(f"{thought}\n\n{CALL}", family)
    assert said(parsed) == [OSLO] and not parsed.problems and parsed.content == thought
    assert not hermes(thought, family).calls and not hermes(thought, family).problems


@EVERY
def test_a_call_in_a_thought_without_an_end_is_a_problem(family):
    parsed = hermes(f"<think>hm {CALL}", family)
    assert not parsed.calls and len(parsed.problems) == 1 and "never closed" in parsed.problems[0]
    assert not hermes("<think>hm", family).problems


def test_a_tag_that_is_a_token_counts_as_that_token_alone():
    tokenizer = build_real("qwen3")
    spelled = [token for char in CALL for token in tokenizer.encode(char, add_special_tokens=False)]
    assert tokenizer.decode(spelled) == CALL
    parsed = tool_format("hermes", tokenizer).parse(spelled, [WEATHER])
    assert not parsed.calls and not parsed.problems and parsed.content == CALL


def test_a_quoted_tag_of_a_vocabulary_without_it_is_text():
    parsed = hermes("Write `<tool_call>` and `</tool_call>` around it.", "llama3_1")
    assert not parsed.calls and not parsed.problems

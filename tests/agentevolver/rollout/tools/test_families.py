"""What each family's real chat template writes is read as the calls that it was given."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.rollout.tools.formats import tool_format
from agentevolver.rollout.tools.schema import ToolSpec
from tests.agentevolver.rollout.tools.replies import read, said
from tests.agentevolver.rollout.tools.writing import WRITERS

EVERY = pytest.mark.parametrize("family", WRITERS)
FULL = {
    "text": "Zürich, 東京 😀\n\"quoted\" \\ {curly} </b> 'it' 5",
    "count": 12345678901234567890,
    "items": [1, "two", None, [], {"a": 2.5}],
    "more": {"deep": {"er": [{"x": False}]}, "ü": "é"},
}
OSLO = ("get_weather", {"city": "Oslo"})


def parse(family, calls, words=""):
    made = WRITERS[family]
    return tool_format(made.format, made.tokenizer()).parse(made.ids(calls, words), ())


@EVERY
def test_several_calls_come_back_in_order_beside_the_words_before_them(family):
    calls = [("move_item", FULL), ("look", {}), ("move_item", {"text": "a;b, c"})]
    words = "I do it." if WRITERS[family].joint is None else ""
    parsed = parse(family, calls, words)
    assert said(parsed) == calls and not parsed.problems
    assert parsed.content.rpartition("</think>")[2].strip() == words


@EVERY
@settings(max_examples=15, deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=40))
def test_calls_carry_any_text(family, text):
    calls = [("f", {"text": text, "tags": "<tool_call></tool_call>", text: [text]})]
    assert said(parse(family, calls)) == calls


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name": "get_weather", "parameters": {"city": "Oslo"}}<|eot_id|>', [OSLO]),
        ('<|python_tag|>{"name": "get_weather", "arguments": {"city": "Oslo"}}<|eom_id|>', [OSLO]),
        ('{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": ";"}};', [("f", {}), ("g", {"a": ";"})]),
        ('<think>hm {"name": "no", "parameters": {}}</think>{"name": "f", "parameters": {}}', [("f", {})]),
    ],
)
def test_llamas_calls_are_read(text, calls):
    parsed = read("llama3", "llama3_1", text)
    assert said(parsed) == calls and not parsed.problems


@pytest.mark.parametrize(
    "text",
    [
        "{not json",
        'Write `{"name": "get_weather", "parameters": {}}`.',
        'It says {"name": "else", "parameters": {}}.',
    ],
)
def test_what_llama_writes_that_is_no_call_is_text(text):
    parsed = read("llama3", "llama3_1", text)
    assert (parsed.content, parsed.calls, parsed.problems) == (text, (), ())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"name": "get_weather"}', 'no "parameters" or "arguments"'),
        ('{"name": "f", "parameters": {}, "arguments": {}}', "more than one of"),
        ('I look: {"name": "get_weather", "parameters": {"city": "Oslo"}}', "must be the whole reply"),
        ("<|python_tag|>print(1)", "was expected"),
        ('<think>hm <|python_tag|>{"name": "f", "parameters": {}}', "never closed"),
    ],
)
def test_a_broken_call_of_llamas_is_a_problem_in_words(text, why):
    parsed = read("llama3", "llama3_1", text)
    assert not parsed.calls and len(parsed.problems) == 1 and why in parsed.problems[0]


@pytest.mark.parametrize(("family", "tokens"), [("llama3_1", ["<|eom_id|>"]), ("qwen3", [])])
def test_a_format_names_the_tokens_that_end_a_reply_of_calls(family, tokens):
    tokenizer = WRITERS[family].tokenizer()
    wanted = tuple(tokenizer.convert_tokens_to_ids(token) for token in tokens)
    assert tool_format(WRITERS[family].format, tokenizer).stop_token_ids == wanted


def test_a_schema_that_refers_to_itself_is_answered():
    tool = ToolSpec("f", parameters={"properties": {"a": {"$ref": "#/properties/a"}}})
    assert tool.problem({"a": 1}) == "the arguments are nested too deeply"

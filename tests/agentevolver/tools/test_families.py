"""What each family's real chat template writes is read as the calls that it was given."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.tools.formats import TOOL_FORMATS, tool_format
from agentevolver.tools.schema import ToolSpec
from tests.agentevolver.tools.replies import said
from tests.agentevolver.tools.writing import WRITERS, write, writer

EVERY = pytest.mark.parametrize("family", WRITERS)
TOOL = ToolSpec(
    "move_item",
    parameters={
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "number": {"type": "number"},
            "count": {"type": "integer"},
            "flag": {"type": "boolean"},
            "items": {"type": "array"},
            "more": {"type": "object"},
            "maybe": {"type": ["string", "null"]},
        },
    },
)
FULL = {
    "text": "Zürich, 東京 😀\n\"quoted\" \\ {curly} </b> 'it' 5",
    "number": 0.25,
    "count": 12345678901234567890,
    "flag": True,
    "items": [1, "two", None, [], {"a": 2.5}],
    "more": {"deep": {"er": [{"x": False}]}, "ü": "é"},
    "maybe": None,
}


def parse(family, calls, words=""):
    made = WRITERS[family]
    return tool_format(made.format, made.tokenizer()).parse(made.ids(calls, words), [TOOL])


@pytest.mark.thorough
@EVERY
def test_calls_come_back_as_they_were(family):
    for arguments in (
        FULL,
        {"text": "a"},
        {"text": ""},
        {"text": "5"},
        {"text": "true"},
        {"count": -3},
        {"flag": False},
        {},
    ):
        parsed = parse(family, [("move_item", arguments)])
        assert said(parsed) == [("move_item", arguments)] and not parsed.problems
        assert parsed.content.replace("<think>", "").replace("</think>", "").strip() == ""


@EVERY
def test_several_calls_come_back_in_order_beside_the_words_before_them(family):
    calls = [("move_item", FULL), ("look", {}), ("move_item", {"text": "a;b, c"})]
    words = "I do it." if WRITERS[family].words else ""
    parsed = parse(family, calls, words)
    assert said(parsed) == calls and not parsed.problems
    assert parsed.content.rpartition("</think>")[2].strip() == words


# No format can be told from tags that a text spells; Mistral's encoder replaces what is no text.
PLAIN = st.text(
    st.characters(codec="utf-8", exclude_characters="<>[]{}|\uff5c`", exclude_categories=("Cs", "Cc")), max_size=30
)
LINES = st.lists(PLAIN, max_size=3).map("\n".join)
NUMBERS = st.integers(-(10**12), 10**12) | st.floats(-1e6, 1e6).map(lambda x: round(x, 6))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | LINES,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(PLAIN, v, max_size=3),
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": LINES,
        "number": NUMBERS,
        "count": st.integers(),
        "flag": st.booleans(),
        "items": st.lists(VALUES, max_size=3),
        "more": st.dictionaries(PLAIN, VALUES, max_size=3),
    },
)
NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_-]{0,20}", fullmatch=True)


@pytest.mark.thorough
@EVERY
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_calls_come_back_as_they_were(family, data):
    calls = data.draw(st.lists(st.tuples(st.just("move_item") | NAMES, ARGUMENTS), min_size=1, max_size=3))
    # Of a tool that is not known, bare text is not told from JSON.
    calls = [(name, given if name == "move_item" else {}) for name, given in calls]
    parsed = parse(family, calls)
    assert said(parsed) == calls and not parsed.problems


JSON_FORMATS = [
    name
    for name, made in WRITERS.items()
    if made.format in ("hermes", "llama3", "gpt_oss", "mistral", "deepseek", "kimi")
]


@pytest.mark.parametrize("family", JSON_FORMATS)
@settings(max_examples=15, deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=40))
def test_json_formats_carry_any_text(family, text):
    if family == "mistral_v2" or WRITERS[family].format == "mistral":
        text = text.replace("\u2581", "_")  # the spelling of a space in its vocabulary
    calls = [("f", {"text": text, "tags": "<tool_call></tool_call>", text: [text]})]
    assert said(parse(family, calls)) == calls


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_every_format_has_a_writer(name):
    made = writer(name)
    text = write(name, [("f", {"a": "b"})], "Now." if made.words else "")
    ids = made.tokenizer().encode(text, add_special_tokens=False)
    parsed = tool_format(name, made.tokenizer()).parse(ids, [])
    assert said(parsed) == [("f", {"a": "b"})]


def test_numbers_keep_their_digits_where_the_format_has_no_quotes():
    made = WRITERS["glm4moe"]
    text = "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1.10</arg_value>\n</tool_call>"
    ids = made.tokenizer().encode(text, add_special_tokens=False)
    (call,) = tool_format("glm", made.tokenizer()).parse(ids, []).calls
    assert call.arguments == '{"n": 1.10}' and json.loads(call.arguments) == {"n": 1.1}

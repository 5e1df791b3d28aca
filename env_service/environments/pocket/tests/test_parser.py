"""One parser for both syntaxes, and nothing an agent writes can break it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env_service.environments.pocket.calls import CallError, PocketCall, parse, render
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.quirks import signature
from env_service.environments.pocket.tests.replays import snapshot
from env_service.environments.pocket.tools import TOOLS


def read(text, syntax="compact", **extra):
    return parse({"role": "assistant", "content": text, **extra}, syntax)


@pytest.mark.parametrize(
    "text",
    [
        "note.del n3 yes",
        "\n  \n note.del n3 yes \nnote.del n4 yes",
        "`note.del n3 yes`",
        "NOTE.DEL N3 YES",
        "<think>which one?\nnote.del n9</think>\n\nnote.del n3 yes",
    ],
)
def test_the_first_line_that_is_not_empty_is_the_call(text):
    assert read(text) == PocketCall("note.del", ("n3", "yes"))


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name":"note.del","arguments":{"id":"n3","confirm":"yes"}}</tool_call>',
        'I delete it.\n<tool_call>\n{"name": "note.del", "arguments": {"id": "n3", "confirm": true}}\n</tool_call>',
        '{"name": "note_del", "arguments": {"id": " N3 ", "confirm": "yes"}} and more',
        '{"name": "note.del", "arguments": "{\\"id\\": \\"n3\\", \\"confirm\\": \\"yes\\"}"}',
        '<tool_call>{"name":"note.del","arguments":{"id":"n3","confirm":"yes"}}</tool_call>{"name":"note.del"}',
    ],
)
def test_json_calls_are_read_in_either_mode(text):
    for syntax in ("compact", "json"):
        assert read(text, syntax) == PocketCall("note.del", ("n3", "yes"), ("id", "confirm"))


def test_native_tool_calls_are_read_before_the_text():
    native = [
        {"id": "1", "type": "function", "function": {"name": "cal_move", "arguments": '{"id": "e3", "day": "mon"}'}}
    ]
    assert read("note.del n3", tool_calls=native) == PocketCall("cal.move", ("e3", "mon"), ("id", "day"))
    assert parse({"role": "assistant", "content": None, "tool_calls": native}, "json").tool == "cal.move"


@pytest.mark.parametrize(
    "text", ["<tool_call>{", '{"name": 3}', '{"name": "doc", "arguments": [1]}', '<tool_call>["doc"]', "{" * 100_000]
)
def test_a_broken_json_call_says_how_to_write_one(text):
    with pytest.raises(CallError, match="<tool_call>"):
        read(text, "json")


def test_an_answer_keeps_its_case_and_its_spaces():
    assert read("done New York").args == ("New", "York")
    assert read('{"name": "done", "arguments": {"answer": "New York"}}').args == ("New York",)


@given(st.sampled_from([t for t in TOOLS.values() if t.name != "done"]), st.data())
def test_what_is_rendered_is_read_back_in_both_syntaxes(tool, data):
    args = tuple(data.draw(st.from_regex(r"[a-z]{1,6}|[1-9][0-9]?", fullmatch=True)) for _ in tool.params)
    call = PocketCall(tool.name, args)
    assert read(render(call, signature(tool.name, None), "compact")) == call
    again = read(render(call, signature(tool.name, None), "json"), "json")
    assert (again.tool, again.args) == (call.tool, call.args)


FRAGMENTS = [*TOOLS, "n1", "bob", "milk", "home", "3", "yes", "\n", "{", "<tool_call>", "\u00b2", "\u0661"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
ANY_TEXT = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(FRAGMENTS), max_size=5).map(" ".join),
    JSON.map(lambda value: json.dumps({"name": "note.add", "arguments": value})),
)


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(st.lists(ANY_TEXT, max_size=6), st.sampled_from(["compact", "json"]))
def test_garbage_never_raises_and_never_changes_anything_without_a_valid_call(texts, syntax):
    env = PocketEnv("note_del.k0.1", "i", {"slack": 9, "syntax": syntax})
    for text in texts:
        if env.is_over:
            break
        before = snapshot(env)
        result = env.step({"role": "assistant", "content": text})
        observation = result["state"][0]["content"]
        assert [m["role"] for m in result["state"]] == ["user"] and observation
        assert result["info"]["refused"] == observation.startswith("err")
        if result["info"]["refused"]:
            assert snapshot(env) == before
        if snapshot(env) != before:
            assert parse({"role": "assistant", "content": text}, syntax).tool in TOOLS

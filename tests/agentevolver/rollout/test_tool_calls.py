"""A reply's calls: each with an id, each answered once and in order, and what was wrong in words that help."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.rollout.tool_calls import PROBLEMS, ToolsMissing, ToolUse, check_calls, read_tools, specs_of
from agentevolver.rollout.tools.schema import Parsed, ParsedCall
from tests.agentevolver.rollout.native import TOOLS as NATIVE

LOOK = NATIVE[0]
DONE = {"type": "function", "function": {"name": "done"}}
TOOLS = specs_of([LOOK, DONE], "fake")
USE = ToolUse(None)


def call(name, **arguments):
    return ParsedCall(name, json.dumps(arguments))


def check(*calls, use=USE, broken=(), content=""):
    return check_calls(Parsed(content, calls, broken), TOOLS, use, turn=3)


def answer(one, text="seen"):
    return {"role": "tool", "tool_call_id": one.id, "name": one.call.name, "content": text}


@pytest.mark.parametrize(
    ("made", "kind", "words"),
    [
        (ParsedCall("look", '{"place": '), "bad_json", "error: the arguments of look are no JSON"),
        (ParsedCall("look", "[" * 100_000), "bad_json", "error: the arguments of look are no JSON"),
        (call("look", place=7), "bad_arguments", "error: look: place: 7"),
        (ParsedCall("loo\ud800k", "{}"), "unknown_tool", "error: there is no tool 'loo?k'; did you mean 'look'?"),
    ],
)
def test_what_is_wrong_with_a_call_is_said_with_its_place(made, kind, words):
    (one,) = check(made).calls
    assert one.problem == kind and one.answer.startswith(words) and kind in PROBLEMS
    assert ("look takes place (string" in one.answer) == (kind != "unknown_tool")


def foreign(**parameters):
    return {"type": "function", "function": {"name": "foreign", "parameters": {"type": "object", **parameters}}}


def of(schema):
    return {"properties": {"a": schema}}


@pytest.mark.parametrize(
    ("parameters", "bad", "good"),
    [
        (of({"type": "string", "pattern": r"^[\p{L} ._-]+$"}), 7, "x"),
        (of({"type": "string", "pattern": r"^(?<year>\d{4})$"}), 7, "x"),
        (of({"type": "string", "pattern": r"^[^]$"}), 7, "x"),
        (of({"type": "string", "pattern": r"\u{1F600}"}), 7, "x"),
        (of({"type": "array", "items": [{"type": "number"}, {"type": "number"}], "maxItems": 2}), ["x"], [1, 2]),
        (of({"type": "array", "items": [{"type": "number"}], "additionalItems": False}), [1, 2], [1]),
        (of({"type": "number", "minimum": 0, "exclusiveMinimum": True}), 0, 1),
        ({"$schema": "http://json-schema.org/draft-04/schema#", **of({"maximum": 9, "exclusiveMaximum": True})}, 9, 8),
        ({"$schema": "http://json-schema.org/draft-07/schema#", **of({"$ref": "#/definitions/n"}),
          "definitions": {"n": {"type": "number"}}}, "x", 7),
        ({"$schema": "https://nowhere.invalid/schema", **of({"type": "number"})}, "x", 7),
        ({"$schema": 4, **of({"type": "number"})}, None, 7),
        (of({"type": "any"}), None, "x"),
        (of({"type": "string", "required": True}), None, 7),
        (of({"$ref": "https://nowhere.invalid/part"}), None, 7),
        (of({"$ref": "#/definitions/missing"}), None, 7),
        ({"properties": ["a"], "required": True}, None, 7),
        ({"properties": {"a": {"enum": "xyz"}}, "required": "a"}, None, 7),
        ({"patternProperties": {"^(?<n>a)$": {"type": "number"}}, "additionalProperties": False}, None, 7),
    ],
)  # fmt: skip
def test_a_schema_of_another_draft_or_dialect_costs_neither_its_tool_nor_the_others(parameters, bad, good):
    tools = [
        foreign(**parameters),
        {"function": {"name": 7}},
        {"type": "function", "function": {"parameters": 1}},
        LOOK,
    ]
    specs = specs_of(tools, "mcp")
    assert (
        [spec.name for spec in specs]
        == ["foreign", "look"]
        == [tool["function"]["name"] for tool in read_tools({"tools": tools}, "mcp")]
    )
    assert specs[0].problem({"a": good}) is None and specs[0].usage and specs[0].example
    assert bad is None or specs[0].problem({"a": bad})
    with pytest.raises(ToolsMissing, match="no tool that can be used"):
        specs_of(tools[1:3], "mcp")


def test_answers_of_the_environment_and_of_the_session_are_woven_in_the_order_of_the_calls():
    reply = check(call("look", place="a"), call("lok"), call("done"), broken=("a call has no name",))
    first, second, third = reply.calls
    state = [answer(third, "bye"), answer(first, "attic"), {"role": "user", "content": "what now?"}]
    assert reply.answers(state) == [
        answer(first, "attic"),
        second.answered(),
        answer(third, "bye"),
        {"role": "user", "content": "error: a call has no name\n\nwhat now?"},
    ]
    assert reply.problems == ("unknown_tool", "broken") and reply.tried == 4


@pytest.mark.parametrize(
    "state",
    [[{"role": "user", "content": "seen"}], [{"role": "tool", "tool_call_id": "c00003000", "content": "x"}] * 2],
)
def test_an_environment_that_does_not_answer_each_call_once_has_failed(state):
    with pytest.raises(ValueError, match="answer each call once"):
        check(call("done")).answers(state)


names = st.sampled_from(["look", "done", "lok", "", "\ud800"])
arguments = st.sampled_from(['{"place": "a"}', "{}", "", "{", "[]", '{"place": 1}', '{"x": "\\ud800"}'])
calls = st.lists(st.builds(ParsedCall, names, arguments), max_size=12)


@settings(max_examples=40)
@given(calls, st.lists(st.text(max_size=8), max_size=2), st.integers(1, 5), st.randoms())
def test_every_call_is_answered_once_and_in_order(made, broken, most, random):
    reply = check(*made, use=ToolUse(None, most), broken=tuple(broken))
    assert [one.problem == "too_many" for one in reply.calls] == [place >= most for place in range(len(made))]
    assert len({one.id for one in reply.calls}) == len(made)
    state = [answer(one) for one in reply.valid]
    random.shuffle(state)
    answers = reply.answers(state)
    assert [message["tool_call_id"] for message in answers if message["role"] == "tool"] == [
        one.id for one in reply.calls
    ]
    assert sum(message["role"] == "user" for message in answers) == bool(broken)
    json.dumps([*(one.to_openai() for one in reply.calls), *answers], ensure_ascii=False).encode()

"""What counts as a call in a model's text, and what the model is told otherwise."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from env_service.environments.bfcl.calls import (
    MAX_CALLS_PER_MESSAGE,
    BfclCall,
    Malformed,
    parse_action,
    parse_reference,
    parse_text,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
calls = st.builds(BfclCall, st.text(min_size=1), st.dictionaries(st.text(), json_values, max_size=4))
words = st.text().filter(lambda text: "<" not in text)


def written(call: BfclCall) -> str:
    return f"<tool_call>{json.dumps({'name': call.name, 'arguments': dict(call.arguments)})}</tool_call>"


@pytest.mark.thorough
@given(st.lists(st.tuples(words, calls), min_size=1, max_size=5), words)
@example([("", BfclCall("<think>", {}))], "")
@example([("", BfclCall("ls", {})), ("", BfclCall("echo", {"</think>": "</tool_call>"}))], "")
def test_calls_are_found_in_order_whatever_stands_around_them(pairs: list[tuple[str, BfclCall]], rest: str) -> None:
    text = "".join(before + written(call) for before, call in pairs) + rest
    assert parse_text(text) == [call for _, call in pairs]


@given(
    st.lists(
        st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                "<think>",
                "</think>",
                '{"name":"ls","arguments":{}}',
                "{",
                "}",
                "hm",
                "\n",
                '"',
            ]
        )
    )
)
def test_any_mixture_of_tags_and_pieces_is_read_without_an_exception(pieces: list[str]) -> None:
    found = parse_text("".join(pieces))
    assert all(isinstance(item, BfclCall | Malformed) for item in found)


@given(st.text())
def test_text_without_tags_is_an_answer(text: str) -> None:
    if "tool_call>" not in text and '"arguments"' not in text:
        assert parse_text(text) == []


def test_a_closing_tag_inside_an_argument_belongs_to_the_argument() -> None:
    call = BfclCall("echo", {"content": "a </tool_call> b <tool_call>"})
    assert parse_text(written(call)) == [call]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("ls()", "not valid JSON"),
        ('{"name": "ls", "arguments": {}', "not valid JSON"),
        ("{'name': 'ls', 'arguments': {}}", "not valid JSON"),
        ('{"name": "ls"}', "exactly the keys"),
        ('{"name": "ls", "parameters": {}}', "exactly the keys"),
        ('{"name": "ls", "arguments": {}, "id": 1}', "exactly the keys"),
        ('{"name": "ls", "arguments": "{}"}', "must be a JSON object"),
        ('{"name": "ls", "arguments": [1]}', "must be a JSON object"),
        ('{"name": "", "arguments": {}}', "name of a function"),
        ('{"name": 3, "arguments": {}}', "name of a function"),
        ('[{"name": "ls", "arguments": {}}]', "not a list"),
        ('"ls"', "not a string"),
        ('{"name": "ls", "arguments": {"a": NaN}}', "NaN is not a JSON number"),
        ('{"name": "ls", "arguments": {"a": 1, "a": 2}}', "given twice"),
        ('{"name": "ls", "arguments": {}}{"name": "pwd", "arguments": {}}', "text after the JSON object"),
        ('{"name": "echo", "arguments": {"content": "two\nlines"}}', "Invalid control character"),
        ("[" * 100_000, "nested too deeply"),
        ('{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}", "Exceeds the limit"),
        ("", "not valid JSON"),
    ],
)
def test_a_call_that_is_none_is_reported_with_the_reason(body: str, reason: str) -> None:
    (found,) = parse_text(f"I try: <tool_call>{body}</tool_call> ok?")
    assert isinstance(found, Malformed)
    assert reason in found.reason


@pytest.mark.parametrize(
    "text",
    ['<tool_call>{"name": "ls", "arguments": {}}', "<tool_call>", '<tool_call>{"name": "ls"', "text <tool_call> text"],
)
def test_a_tag_that_is_not_closed_is_reported(text: str) -> None:
    (found,) = parse_text(text)
    assert isinstance(found, Malformed)
    assert "not closed" in found.reason


def test_a_closing_tag_alone_is_reported() -> None:
    assert [type(item) for item in parse_text("</tool_call> " + written(BfclCall("ls", {})))] == [Malformed, BfclCall]


@pytest.mark.parametrize("text", ['{"name": "ls", "arguments": {}}', '```json\n[{"name": "ls", "arguments": {}}]\n```'])
def test_a_call_that_lost_its_tags_is_reported_and_not_taken_for_an_answer(text: str) -> None:
    (found,) = parse_text(text)
    assert isinstance(found, Malformed)
    assert "must stand between" in found.reason


def test_good_and_bad_calls_of_one_message_keep_their_places() -> None:
    text = written(BfclCall("ls", {})) + "<tool_call>?</tool_call>" + written(BfclCall("pwd", {}))
    assert [type(item) for item in parse_text(text)] == [BfclCall, Malformed, BfclCall]


def test_reasoning_is_not_searched_for_calls() -> None:
    call, other = BfclCall("ls", {}), BfclCall("rm", {"file_name": "a"})
    assert parse_text(f"<think>maybe {written(other)}</think>{written(call)}") == [call]
    assert parse_text(f"maybe {written(other)}</think>\n{written(call)}") == [call]
    assert parse_text(f"<think>maybe {written(other)}") == []


def test_a_tag_of_reasoning_inside_an_argument_belongs_to_the_argument() -> None:
    call = BfclCall("echo", {"content": "</think> a <think>"})
    assert parse_text(f"<think>maybe</think>{written(call)}{written(BfclCall('ls', {}))}") == [call, BfclCall("ls", {})]


def test_reasoning_that_names_the_tags_spoils_no_call() -> None:
    call = BfclCall("ls", {})
    assert parse_text(f"I write <tool_call> and then</think>{written(call)}") == [call]
    assert parse_text(f"<think>a <tool_call>{{ or </tool_call></think>{written(call)}") == [call]


def test_structured_calls_count_instead_of_the_text() -> None:
    action = {
        "role": "assistant",
        "content": written(BfclCall("rm", {"file_name": "a"})),
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "cd", "arguments": '{"folder": "b"}'}},
            {"function": {"name": "ls", "arguments": {"a": True}}},
            {"function": {"name": "ls", "arguments": "{"}},
            "ls",
        ],
    }
    found = parse_action(action)
    assert found[:2] == [BfclCall("cd", {"folder": "b"}), BfclCall("ls", {"a": True})]
    assert [type(item) for item in found[2:]] == [Malformed, Malformed]


def test_a_message_with_too_many_calls_executes_none() -> None:
    (found,) = parse_action({"role": "assistant", "content": written(BfclCall("ls", {})) * (MAX_CALLS_PER_MESSAGE + 1)})
    assert isinstance(found, Malformed)


@pytest.mark.parametrize(
    "action",
    [
        {},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": 3},
        {"role": "assistant", "tool_calls": {}},
    ],
)
def test_what_is_no_assistant_message_is_the_callers_error(action: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"action|tool_calls"):
        parse_action(action)


def test_reference_calls_hold_literals_only() -> None:
    assert parse_reference("f('a', b=[1, -2.5], c={'d': None})") == BfclCall(
        "f", {"b": [1, -2.5], "c": {"d": None}}, ("a",)
    )
    for text in ["f(__import__('os'))", "f(x)", "f(**{'a': 1})", "os.system('ls')", "f(1)(2)", "1 + 1"]:
        with pytest.raises(ValueError):
            parse_reference(text)

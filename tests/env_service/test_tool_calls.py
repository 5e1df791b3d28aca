"""Calls out of messages, whatever a model or an SDK put there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage

from env_service.contract import checked_action
from env_service.tool_calls import BadCall, ToolCall, after_thoughts, structured_calls, tagged_calls

CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"number": 4}'}}


def reply(**fields: Any) -> ChatCompletionMessage:
    """A message as OpenAI's SDK reads it from the API's own JSON."""
    text = json.dumps({"role": "assistant", "content": None, "refusal": None, "annotations": [], **fields})
    return ChatCompletionMessage.model_validate_json(text)


def dumps(message: ChatCompletionMessage) -> list[dict[str, Any]]:
    return [message.model_dump(), message.model_dump(exclude_none=True), message.model_dump(mode="json")]


def test_a_reply_of_the_sdk_is_an_action_however_it_is_dumped() -> None:
    for dumped in dumps(reply(tool_calls=[CALL])):
        action = checked_action(dumped)
        assert (action["role"], action["content"]) == ("assistant", "")
        assert structured_calls(action) == [ToolCall("add", {"number": 4}, "call_1")]


def test_a_reply_of_the_sdk_without_calls_is_its_text_or_its_refusal() -> None:
    for message, text in ((reply(content="four"), "four"), (reply(refusal="I will not."), "I will not.")):
        for dumped in dumps(message):
            action = checked_action(dumped)
            assert (action["content"], structured_calls(action)) == (text, [])
    assert checked_action(reply().model_dump())["content"] == ""


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "one message"),
        ({"role": "assistant", "tool_calls": None}, "one message"),
        ({"content": [{"type": "text", "text": "hi"}]}, "`content` of a message is text"),
        ({"content": "hi", "tool_calls": {}}, "`tool_calls` of a message is a list"),
    ],
)
def test_what_is_no_message_is_refused_with_the_reason(value: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        checked_action(value)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("add", "not a string"),
        ({"function": {"name": "\ud800"}}, "no `name`"),
        ({"function": {"name": "add", "arguments": "{"}}, "no valid JSON"),
        ({"function": {"name": "add", "arguments": '{"a": {"b": 1, "b": 1}}'}}, "'b' is given twice"),
        ({"function": {"name": "add", "arguments": '{"a": "\\ud800"}'}}, "lone surrogate"),
        ({"function": {"name": "add", "arguments": "[" * 100_000}}, "nested too deeply"),
        ({"function": {"name": "add", "arguments": "[1]"}}, "must be a JSON object, not a list"),
    ],
)
def test_a_structured_call_that_is_none_says_why_in_its_place(call: Any, reason: str) -> None:
    first, found, last = structured_calls({"role": "assistant", "content": "", "tool_calls": [CALL, call, CALL]})
    assert isinstance(found, BadCall) and reason in found.reason and len(found.reason) < 400
    assert first == last == ToolCall("add", {"number": 4}, "call_1")


def test_calls_in_tags_are_found_in_order_and_the_last_may_lack_its_end() -> None:
    text = 'so <tool_call>{"name": "a", "arguments": {"x": "1\n2"}}</tool_call> and <tool_call>{"name": "b"}'
    assert tagged_calls(text) == [ToolCall("a", {"x": "1\n2"}), ToolCall("b", {})]
    (bad,) = tagged_calls("<tool_call>{</tool_call>", "[CALL]")
    assert isinstance(bad, BadCall) and bad.reason.endswith("write [CALL]")


tags = st.sampled_from(["<tool_call>", "</tool_call>", "<think>", "</think>", "{", '"', "x"])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(tags).map("".join), min_size=1), st.booleans())
def test_tags_within_a_call_s_json_are_a_part_of_it(values: list[str], thinks: bool) -> None:
    calls = [ToolCall("say", {"text": value}) for value in values]
    written = [json.dumps({"name": "say", "arguments": call.arguments}) for call in calls]
    text = "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in written)
    assert tagged_calls(text) == calls
    assert after_thoughts(("so <tool_call> it is</think>" if thinks else "") + text) == text

"""Logs of other programs as trajectories: three forms of a line, and what is refused with its line."""

import json
from pathlib import Path

import openai.types.chat as chat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentevolver.llm.message_logs import LogError, as_text, read_line, read_logs
from agentevolver.types import StopReason

TALK = [
    {"role": "system", "content": "rules"},
    {"role": "user", "content": "what is 6 times 7?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "times", "arguments": '{"a": 6, "b": 7}'}}
    ]},
    {"role": "tool", "tool_call_id": "a", "content": "42"},
    {"role": "assistant", "content": "42"},
]  # fmt: skip


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def test_a_conversation_becomes_steps_with_what_was_said_to_each():
    found = read_line({"messages": TALK, "score": 1, "task_id": "t", "env_type": "sums"}, "log-1")
    assert found.task.task_id == "t" and found.task.env_type == "sums" and found.stop_reason is StopReason.FINISHED
    assert found.outcome is not None and found.outcome.success
    assert [(step.index, step.observation) for step in found.steps] == [(0, "42"), (1, "")]
    assert json.loads(found.steps[0].action.split("\n")[1]) == {"name": "times", "arguments": {"a": 6, "b": 7}}
    assert found.messages[2]["tool_calls"] == TALK[2]["tool_calls"] and found.messages[2]["content"] == ""


def test_a_call_as_a_proxy_wrote_it_down_is_read_with_its_tools():
    reply = chat.ChatCompletion.model_validate(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
        }
    )
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    record = {
        "request": {"messages": [{"role": "user", "content": "hi"}], "tools": tools},
        "response": reply.model_dump(),
    }
    found = read_line({**record, "success": True}, "log-1")
    assert [message["role"] for message in found.messages] == ["user", "assistant"]
    assert found.task.metadata["tools"] == tools


def test_a_record_of_a_run_is_read_as_it_was_written():
    first = read_line({"messages": TALK, "score": 0.5}, "log-1")
    assert read_line(first.to_dict(), "other") == first


def test_conversations_with_one_opening_are_of_one_task():
    asked = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    other = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "b"}]
    named = [read_line({"messages": said, "score": 1}, "x").task.task_id for said in (asked, [*asked, *asked], other)]
    assert named[0] == named[1] != named[2]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"messages": TALK}, "no `score`"),
        ({"messages": TALK[:2], "score": 1}, "nothing to learn from"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, TALK[4]], "score": 1}, "'image_url'"),
        ({"text": "hello"}, "neither `messages`"),
    ],
)
def test_what_is_no_conversation_is_refused_with_its_line(tmp_path: Path, line, told):
    path = written(tmp_path / "log.jsonl", {"messages": TALK, "score": 1}, line)
    with pytest.raises(LogError, match=r"log\.jsonl, line 2: ") as error:
        read_logs([path])
    assert told in str(error.value)


def test_a_torn_last_line_is_left_out_and_a_broken_one_before_it_is_not(tmp_path: Path):
    path = written(tmp_path / "log.jsonl", {"messages": TALK, "score": 1})
    with path.open("a") as file:
        file.write('{"messages": [')
    assert len(read_logs([path])) == 1
    with path.open("a") as file:
        file.write("\n")
    with pytest.raises(LogError, match="line 2"):
        read_logs([path])


@given(st.text(), st.text(min_size=1), st.dictionaries(st.text(), st.text() | st.integers() | st.none()))
def test_calls_are_said_in_the_text(content, name, arguments):
    text = as_text({"content": content, "tool_calls": [{"function": {"name": name, "arguments": arguments}}]})
    start = text.rindex("<tool_call>\n") + len("<tool_call>\n")
    assert json.loads(text[start:].removesuffix("\n</tool_call>")) == {"name": name, "arguments": arguments}
    assert text.startswith(content)

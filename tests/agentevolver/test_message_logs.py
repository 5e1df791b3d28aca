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
        ({"messages": [*TALK[:2], {**TALK[4], "loss": False}], "score": 1}, "`loss` of the role assistant"),
        ({"messages": [{**TALK[1], "attachments": ["a.pdf"]}, TALK[4]], "score": 1}, "`attachments` of the role user"),
        ({"messages": [*TALK[:2], {**TALK[4], "refusal": "no"}], "score": 1}, "`refusal`"),
        ({"messages": [*TALK[:2], {**TALK[4], "audio": {"id": "a"}}], "score": 1}, "`audio`"),
        ({"messages": [*TALK[:2], {**TALK[4], "reasoning": ["a"]}], "score": 1}, "`reasoning`"),
        ({"messages": [*TALK[:2], {**TALK[4], "reasoning": "a", "thinking": "b"}], "score": 1}, "`thinking`"),
        ({"messages": [*TALK[:3], TALK[4]], "tools": '"look"', "score": 1}, "`tools`"),
        ({"messages": [*TALK[:2], {**TALK[2], "function_call": {"name": "f"}}], "score": 1}, "`function_call`"),
        ({"messages": [*TALK[:2], {**TALK[4], "weight": 0.5}], "score": 1}, "neither 0 nor 1"),
        ({"messages": TALK, "score": 1, "metadata": "mine"}, "`metadata`"),
        ({"request": {"messages": TALK[:2]}, "response": {"choices": 2 * [{"message": TALK[4]}]}}, "one choice"),
    ],
)
def test_what_is_no_conversation_is_refused_with_its_line(tmp_path: Path, line, told):
    path = written(tmp_path / "log.jsonl", {"messages": TALK, "score": 1}, line)
    with pytest.raises(LogError, match=r"log\.jsonl, line 2: ") as error:
        read_logs([path])
    assert told in str(error.value)


CALLED = {"name": "times", "arguments": "{}"}


@pytest.mark.parametrize(
    ("said", "beside", "kept"),
    [
        ({"content": "42", "reasoning_content": "6 x 7"}, {}, "<think>\n6 x 7\n</think>\n\n42"),
        ({"content": "42", "reasoning": "6 x 7", "thinking": "6 x 7"}, {}, "<think>\n6 x 7\n</think>\n\n42"),
        ({"content": "<think>6 x 7</think>42", "reasoning": "6 x 7"}, {}, "<think>6 x 7</think>42"),
        ({"content": None, "refusal": "I will not"}, {}, "I will not"),
        ({"content": [{"type": "refusal", "refusal": "I will not"}]}, {}, "I will not"),
        ({"content": None, "function_call": CALLED}, {}, '"times"'),
        ({"content": "42", "function_call": None, "audio": None, "annotations": [], "id": "m1"}, {}, "42"),
        ({"content": "42"}, {"functions": [{"name": "times"}]}, '"function":{"name":"times"}'),
        ({"content": "42"}, {"tools": '[{"name": "times"}]'}, '"function":{"name":"times"}'),
        ({"content": "42"}, {"system": "be short"}, '"content":"be short"'),
        ({"content": "42"}, {"temperature": 0.5, "stop_reason": "end_turn"}, '"temperature":0.5'),
        ({"content": "42"}, {"task_id": 0}, '"task_id":"0"'),
    ],
)
def test_what_other_programs_write_is_kept(said, beside, kept):
    asked = {"role": "user", "content": "6 times 7?", "weight": 0}
    found = read_line({"messages": [asked, {"role": "assistant", **said}], "score": 1, **beside}, "log-1")
    assert kept in json.dumps(found.to_dict(), separators=(",", ":")) or kept in found.steps[0].action


def test_the_result_of_a_function_answers_its_call():
    said = [{"role": "assistant", "function_call": CALLED}, {"role": "function", "name": "times", "content": "6"}]
    _, call, answer = read_line({"messages": [TALK[1], *said], "score": 1}, "log-1").messages
    assert answer["role"] == "tool" and answer["tool_call_id"] == call["tool_calls"][0]["id"]


@pytest.mark.parametrize(("code", "told"), [("utf-8-sig", None), ("utf-16", "codec"), ("utf-16-le", "line 1")])
def test_a_log_in_another_code_is_read_or_refused(tmp_path: Path, code, told):
    (tmp_path / "log.jsonl").write_bytes(json.dumps({"messages": TALK, "score": 1}).encode(code))
    if told is None:
        assert len(read_logs([tmp_path / "log.jsonl"])) == 1
    else:
        with pytest.raises(LogError, match=told):
            read_logs([tmp_path / "log.jsonl"])


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

"""Reading assistant messages: code, answers, and anything a model may write instead."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_service.base import Message
from env_service.environments.python_tool.actions import Code, PythonAnswer, PythonNoAction, answer_of, boxed, parse


def said(content: str) -> Message:
    return {"role": "assistant", "content": content}


def called(name: Any, arguments: Any) -> Message:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}],
    }


@pytest.mark.parametrize(
    ("content", "source"),
    [
        ("Let me see.\n```python\nx = 1\nx\n```\ndone", "x = 1\nx\n"),
        ("```py\nx\n```", "x\n"),
        ("```Python\nx", "x\n"),
        ("```python x = 1```", "x = 1\n"),
        ("```python\ns = '```'\ns\n```", "s = '```'\ns\n"),
        ('<tool_call>{"name": "python", "arguments": {"code": "x"}}</tool_call>', "x"),
        ('<tool_call>\n{"name": "python", "arguments": "{\\"code\\": \\"x\\"}"}\n</tool_call>', "x"),
        ('<tool_call>{"name": "python", "arguments": {"code": "a\nb"}}', "a\nb"),
        ("<think>```python\nwrong\n```</think>```python\nright\n```", "right\n"),
    ],
)
def test_code_is_found_in_blocks_and_tagged_calls(content: str, source: str) -> None:
    action = parse(said(content))
    assert isinstance(action, Code)
    assert action.source == source


def test_only_the_first_block_is_taken_and_the_others_are_counted() -> None:
    action = parse(said("```python\n1\n```\n```python\n2\n```\n```text\n3\n```"))
    assert action == Code("1\n", "block", 1)


def test_whichever_comes_first_is_taken() -> None:
    call = '<tool_call>{"name": "python", "arguments": {"code": "call"}}</tool_call>'
    block = "```python\nblock\n```"
    assert parse(said(call + block)) == Code("call", "tool_call")
    assert parse(said(block + call)) == Code("block\n", "block")


def test_code_goes_before_an_answer() -> None:
    assert isinstance(parse(said("\\boxed{3}\n```python\n1\n```")), Code)


def test_structured_calls_are_understood() -> None:
    assert parse(called("python", '{"code": "x"}')) == Code("x", "structured")
    assert parse(called("python", {"code": "x"})) == Code("x", "structured")


@pytest.mark.parametrize(
    "message",
    [
        called("bash", '{"code": "x"}'),
        called("python", "{"),
        called("python", "[1]"),
        called("python", {"code": 3}),
        called("python", {"code": " "}),
        called(None, None),
        {"role": "assistant", "content": "", "tool_calls": [{}]},
        {"role": "assistant", "content": "", "tool_calls": ["x"]},
        said(""),
        said("I think it is three."),
        said("```python\n\n```"),
        said("<tool_call>not json</tool_call>"),
        said("<tool_call>[]</tool_call>"),
        said("<tool_call>" + "[" * 100_000),
        said('<tool_call>{"name": ' + "9" * 10_000),
        said('<tool_call>{"name": "python"}</tool_call>'),
        said("\\boxed{}"),
    ],
)
def test_everything_else_is_told_what_is_wrong(message: Message) -> None:
    action = parse(message)
    assert isinstance(action, PythonNoAction)
    assert action.reason.strip()
    assert len(action.reason) < 600


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("So \\boxed{42}.", "42"),
        ("\\boxed{1} and finally \\boxed{\\frac{3}{4}}", "\\frac{3}{4}"),
        ("\\boxed{\\left\\{1, 2\\right\\}}", "\\left\\{1, 2\\right\\}"),
        ("{{ \\boxed{5}", "5"),
        ("} \\boxed{5} \\boxed{6", "5"),
        ("\\boxed{\\boxed{7}}", "7"),
        ("Answer: 42", "42"),
        ("answer: 1\nAnswer: 2", "2"),
        ("**Answer:** 42", "42"),
        ("The final answer is 3/4", "3/4"),
        ("> Final answer: x = 3 ", "x = 3"),
        ("Answer:", None),
        ("My answers: none", None),
    ],
)
def test_answers_are_found(content: str, answer: str | None) -> None:
    assert answer_of(content) == answer
    if answer:
        assert parse(said(content)) == PythonAnswer(answer)


@given(st.text(alphabet="ab{}\\12", max_size=30).filter(lambda text: boxed("\\boxed{" + text + "}") == text.strip()))
def test_a_balanced_content_comes_back_whatever_stands_before(content: str) -> None:
    assert boxed("text } \\boxed{0} {" + "\\boxed{" + content + "}") == content.strip()


@given(st.text())
def test_no_text_breaks_the_parser(content: str) -> None:
    parse(said(content))
    parse(said("<tool_call>" + content))
    parse(said("```python\n" + content))
    parse(called("python", json.dumps({"code": content})))


@pytest.mark.parametrize(
    "piece", ["\\boxed{", "{", "\n", "answer: * ", "* ", "<tool_call>", "```python\n", "`", " ", "the "]
)
def test_long_repetitive_text_is_read_quickly(piece: str) -> None:
    started = time.process_time()
    parse(said(piece * (300_000 // len(piece))))
    assert time.process_time() - started < 5

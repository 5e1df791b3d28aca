"""Which code an assistant message holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_service.base import Message
from env_service.environments.appworld.actions import parse


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def test_all_python_blocks_are_taken_in_order() -> None:
    action = parse(said("First\n```python\na = 1\n```\nthen\n```py\nprint(a)\n```\nand\n```Python3\nb = 2\n```"))
    assert action.blocks == ["a = 1", "print(a)", "b = 2"]
    assert action.problems == []


def test_a_block_without_closing_fence_reaches_to_the_end() -> None:
    assert parse(said("```python\nfor x in y:\n    print(x)")).blocks == ["for x in y:\n    print(x)"]


def test_indentation_of_the_first_line_is_kept() -> None:
    assert parse(said("```python\n  x = 1\n  y = 2\n```")).blocks == ["  x = 1\n  y = 2"]


def test_a_fence_may_follow_text_on_its_line_and_close_at_the_end_of_a_line() -> None:
    assert parse(said("I look: ```python\nprint(1)```\nand ```python\nprint(2)\n```")).blocks == [
        "print(1)",
        "print(2)",
    ]


def test_inline_code_in_triple_backticks_does_not_swallow_the_block_after_it() -> None:
    assert parse(said("Use ```apis``` here:\n```python\nprint(1)\n```")).blocks == ["print(1)"]


def test_windows_line_ends_are_understood() -> None:
    assert parse(said("```python\r\nprint(1)\r\n```\r\n")).blocks == ["print(1)"]


def test_a_fence_inside_a_string_of_the_code_does_not_end_the_block() -> None:
    assert parse(said('```python\nx = "```python"\nprint(x)\n```')).blocks == ['x = "```python"\nprint(x)']


def test_blocks_in_other_languages_are_named_in_the_problem() -> None:
    action = parse(said("```json\n{}\n```\n```\nprint(1)\n```"))
    assert action.blocks == []
    assert "'json'" in action.problems[0]
    assert "no language" in action.problems[0]


def test_code_that_is_only_thought_is_not_executed() -> None:
    assert parse(said("<think>\n```python\nbad()\n```\n</think>\n```python\ngood()\n```")).blocks == ["good()"]
    assert parse(said("<think>\n```python\nbad()\n```")).blocks == []


@pytest.mark.parametrize("text", ["", "  \n", "I am done.", "```python\n\n```"])
def test_a_message_without_code_has_a_problem_that_says_so(text: str) -> None:
    action = parse(said(text))
    assert action.blocks == []
    assert len(action.problems) == 1


def test_the_simple_mode_executes_a_bare_message_and_still_understands_fences() -> None:
    assert parse(said("print(1)\nprint(2)"), is_simple=True).blocks == ["print(1)\nprint(2)"]
    assert parse(said("```python\nprint(1)\n```"), is_simple=True).blocks == ["print(1)"]
    assert parse(said("```json\n{}\n```"), is_simple=True).blocks == []


def tool_call(name: str, arguments: object) -> Message:
    calls = [{"function": {"name": name, "arguments": arguments}}]
    return {"role": "assistant", "content": "```python\nignored()\n```", "tool_calls": calls}


def test_tool_calls_named_appworld_come_instead_of_the_text() -> None:
    assert parse(tool_call("appworld", '{"code": "print(1)"}')).blocks == ["print(1)"]
    assert parse(tool_call("appworld", {"code": "print(1)"})).blocks == ["print(1)"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("shell", '{"code": "x"}'),
        ("appworld", "no json"),
        ("appworld", "[1]"),
        ("appworld", '{"code": 3}'),
        ("appworld", None),
    ],
)
def test_a_tool_call_that_cannot_be_executed_becomes_a_problem(name: str, arguments: object) -> None:
    action = parse(tool_call(name, arguments))
    assert action.blocks == []
    assert len(action.problems) == 1


LINE_ENDS = "\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
code_lines = st.lists(st.text(alphabet=st.characters(blacklist_characters="`" + LINE_ENDS), min_size=1), min_size=1)


@given(
    st.lists(
        code_lines.map("\n".join).filter(lambda code: code.strip() and "think>" not in code), min_size=1, max_size=4
    )
)
def test_whatever_is_fenced_comes_back(blocks: list[str]) -> None:
    text = "\n".join(f"say\n```python\n{block}\n```" for block in blocks)
    assert parse(said(text)).blocks == [block.rstrip() for block in blocks]


@given(st.text())
def test_any_text_yields_code_or_a_problem_and_never_an_exception(text: str) -> None:
    action = parse(said(text))
    assert bool(action.blocks) != bool(action.problems)

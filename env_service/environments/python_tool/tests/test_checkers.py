"""Comparing answers with references."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_service.environments.python_tool.checkers import (
    PythonTask,
    is_correct,
    parse_number,
    same_expression,
    same_number,
    same_text,
)
from env_service.environments.python_tool.problems.problem import as_text
from env_service.environments.python_tool.settings import GRADER_PACKAGES, is_installed

needs_math_verify = pytest.mark.skipif(
    not all(map(is_installed, GRADER_PACKAGES)), reason="needs math-verify[antlr4_9_3]"
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", Fraction(42)),
        ("-7.", Fraction(-7)),
        ("+3.50", Fraction(7, 2)),
        (".5", Fraction(1, 2)),
        ("1e3", Fraction(1000)),
        ("3/4", Fraction(3, 4)),
        ("-3 / 4", Fraction(-3, 4)),
        ("$\\frac{3}{4}$", Fraction(3, 4)),
        ("-\\dfrac{3}{4}", Fraction(-3, 4)),
        ("\\frac34", Fraction(3, 4)),
        ("1,234,567", Fraction(1234567)),
        *((text, Fraction(-1234)) for text in ("-$1,234.00", "\\$-1,234", "- € 1234", "-1{,}234", "$-\\$1,234$")),
        ("12\\%", Fraction(3, 25)),
        ("x = 5", Fraction(5)),
        ("\N{MINUS SIGN}5", Fraction(-5)),
        ("`17`", Fraction(17)),
        ("\\text{9}", Fraction(9)),
        ("1/0", None),
        ("", None),
        ("three", None),
        ("3 or 4", None),
        ("1,2", None),
        ("1/2/3", None),
        ("1e999999999", None),
        ("9" * 5000, None),
    ],
)
def test_numbers_are_read(text: str, value: Fraction | None) -> None:
    assert parse_number(text) == value


@given(st.fractions())
def test_a_written_fraction_reads_back(value: Fraction) -> None:
    assert parse_number(as_text(value)) == value
    assert same_number(as_text(value), as_text(value))


@given(st.integers(), st.integers())
def test_integers_are_compared_exactly(first: int, second: int) -> None:
    assert same_number(str(first), str(second)) == (first == second)


def test_other_numbers_may_be_rounded_to_six_digits_unless_the_task_says_otherwise() -> None:
    assert same_number("1/3", "0.3333333")
    assert not same_number("1/3", "0.3333")
    assert same_number("1/3", "0.3333", tolerance=1e-3)
    assert not same_number("1234567891", "1234567890")


def test_a_reference_that_is_no_number_is_an_error_and_not_a_wrong_answer() -> None:
    with pytest.raises(ValueError, match="reference answer 'pi'"):
        same_number("pi", "3")


def test_texts_are_equal_but_for_white_space_and_typesetting() -> None:
    assert same_text("[1, 2]", " [1,2] ")
    assert same_text("Abc", "`Abc`")
    assert not same_text("Abc", "abc")
    assert not same_text("a b", "ab")


def test_an_endless_answer_is_wrong_at_once() -> None:
    assert not is_correct(PythonTask("t", "q", "1", "math-verify"), "1+" * 5000 + "1")


@needs_math_verify
@pytest.mark.service
def test_expressions_are_compared_by_value() -> None:
    assert same_expression("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}")
    assert same_expression("(x+1)^2", "x^2+2x+1")
    assert not same_expression("\\sqrt{2}", "1.41")


@needs_math_verify
@pytest.mark.service
@pytest.mark.parametrize("answer", ["(7*8-50)/2", "4=3"])
def test_the_arithmetic_is_not_left_to_the_grader(answer: str) -> None:
    assert same_expression("3", "3")
    assert not same_expression("3", answer)


UNFINISHED = {
    "3": "(7*8-50)/2 4=3 1+2 10-7 2+1=3 x=1+2 x=1+2=3 x+1=3 4\\equiv3 \\sqrt{9} 3\\cdot1+0 \\max(1,3) \\log_2{8} |-3| "
    "\\int_0^1{3dx}",
    "1024": "2^{10} 4^5",
    "120": "5! 1\\cdot2\\cdot3\\cdot4\\cdot5",
    "x+3": "x+1+2",
    "6x": "2\\cdot3x",
    "\\{1,2\\}": "\\{1,1+1\\}",
    "\\frac{3+\\sqrt{5}}{2}": "\\frac{3+\\sqrt{1+4}}{2} \\frac{1+2+\\sqrt{5}}{2}",
}
FINISHED = {
    "3": "3 3.0 x=3 f(x)=3 (3) 3^\\circ 3\\text{m} x=y=3",
    "-\\frac{3}{4}": "-3/4 -\\frac{3}{4} \\frac{-3}{4} -0.75 \\frac{3}{-4}",
    "300000": "3\\times10^5 3\\cdot10^{5} 300,000",
    "1\\frac{1}{2}": "3/2 1.5",
    "\\frac{3+\\sqrt{5}}{2}": "\\frac{3+\\sqrt{5}}{2} \\frac{1}{2}(3+\\sqrt{5}) 1.5+\\frac{\\sqrt{5}}{2}",
    "\\frac{\\sqrt{2}}{2}": "\\frac{1}{\\sqrt{2}}",
    "x^2+2x+1": "(x+1)^2",
    "\\frac{3}{2x}": "\\frac{3}{2x} \\frac{1.5}{x}",
    "y=2x+3": "y=2x+3 2x+3=y",
    "2^{10}": "1024 4^5",
    "\\{1,2\\}": "\\{2,1\\}",
    "\\begin{pmatrix}1\\\\2\\end{pmatrix}": "\\begin{pmatrix}1\\\\2\\end{pmatrix}",
}


@pytest.mark.thorough
@needs_math_verify
@pytest.mark.parametrize(
    ("reference", "answers", "right"),
    [*((k, v, "False") for k, v in UNFINISHED.items()), *((k, v, "True") for k, v in FINISHED.items())],
)
def test_an_answer_states_a_value(reference: str, answers: str, right: str) -> None:
    from env_service.environments.python_tool.expressions import verdict

    assert {answer: verdict(reference, answer) for answer in answers.split()} == dict.fromkeys(answers.split(), right)


@needs_math_verify
@pytest.mark.service
def test_an_answer_that_hangs_the_comparison_is_wrong() -> None:
    started = time.monotonic()
    assert not same_expression("x + 1", "9^{9^{9^{9}}}")
    assert time.monotonic() - started < 30


@needs_math_verify
@pytest.mark.parametrize("answer", ["2} \\boxed{3", "2}, \\text{or}{3", "\\boxed{3}"])
def test_several_candidates_are_not_one_answer(answer: str) -> None:
    assert not same_expression("3", answer)


@needs_math_verify
@pytest.mark.service
def test_a_reference_that_math_verify_cannot_read_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot read"):
        same_expression("", "3")

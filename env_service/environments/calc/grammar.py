"""Questions of calc and their answers.

A question is a family and a chain: `left 3 f 4 g 7` is (3 f 4) g 7, `right 3 f 4 g 7` is 3 f (4 g 7). An operator is a
table of 10 x 10 digits that only the calculator knows. Each row and column holds every digit once, so a wrong
intermediate result always gives a wrong answer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

OPERATORS = ("f", "g", "h", "m")
FAMILIES = ("left", "right")
DIGITS = tuple("0123456789")
MIN_OPERANDS, MAX_OPERANDS = 2, 8


class QuestionError(ValueError):
    """A text is no question; the message names the place."""


class ExpressionStep(NamedTuple):
    first: int
    operator: str
    second: int
    value: int


@dataclass(frozen=True, slots=True)
class CalcQuestion:
    """A chain: `len(operators) == len(operands) - 1`; `str` writes it with single spaces."""

    family: str
    operands: tuple[int, ...]
    operators: tuple[str, ...]

    @property
    def level(self) -> int:
        return len(self.operands)

    def __str__(self) -> str:
        chain = [str(self.operands[0])]
        for operator, operand in zip(self.operators, self.operands[1:], strict=True):
            chain += [operator, str(operand)]
        return " ".join((self.family, *chain))


def apply(operator: str, first: int, second: int) -> int:
    """Return the calculator's result; raises KeyError or IndexError for an unknown operator or digit."""
    return _TABLES[operator][first][second]


def parse_question(text: str) -> CalcQuestion:
    """Read a question of 2 to 8 operands, whatever the space between its words; raises QuestionError."""
    words = text.split()
    if not words or words[0] not in FAMILIES:
        raise QuestionError(f"a question begins with one of {', '.join(FAMILIES)}, not with {_shown(words)}")
    chain = words[1:]
    if len(chain) % 2 == 0:
        raise QuestionError("a chain begins and ends with a digit, with operators in between")
    operands, operators = chain[::2], chain[1::2]
    if wrong := [word for word in operands if word not in DIGITS]:
        raise QuestionError(f"{_shown(wrong)} stands where a digit should")
    if wrong := [word for word in operators if word not in OPERATORS]:
        raise QuestionError(f"{_shown(wrong)} is none of the operators {' '.join(OPERATORS)}")
    if not MIN_OPERANDS <= len(operands) <= MAX_OPERANDS:
        raise QuestionError(f"{len(operands)} operands; a chain has {MIN_OPERANDS} to {MAX_OPERANDS}")
    return CalcQuestion(words[0], tuple(map(int, operands)), tuple(operators))


def solution(question: CalcQuestion) -> list[ExpressionStep]:
    """Return the calls that solve a question, in order; the last result is the answer."""
    operands, operators = list(question.operands), list(question.operators)
    steps: list[ExpressionStep] = []
    while operators:
        at = 0 if question.family == "left" else len(operators) - 1
        first, second = operands[at : at + 2]
        step = ExpressionStep(first, operators[at], second, apply(operators[at], first, second))
        operands[at : at + 2] = [step.value]
        del operators[at]
        steps.append(step)
    return steps


def evaluate(text: str) -> str:
    """Return the answer of a question, a digit; raises QuestionError."""
    return str(solution(parse_question(text))[-1].value)


def draw_question(rng: random.Random, family: str, level: int) -> CalcQuestion:
    operands = tuple(rng.randrange(10) for _ in range(level))
    return CalcQuestion(family, operands, tuple(rng.choice(OPERATORS) for _ in range(level - 1)))


def _shown(words: list[str]) -> str:
    return repr(words[0][:20]) if words else "nothing"


def _table(operator: str) -> list[list[int]]:
    rng = random.Random(f"calc operator {operator}")
    rows, columns, values = (rng.sample(range(10), 10) for _ in range(3))
    return [[values[(rows[first] + columns[second]) % 10] for second in range(10)] for first in range(10)]


_TABLES = {operator: _table(operator) for operator in OPERATORS}

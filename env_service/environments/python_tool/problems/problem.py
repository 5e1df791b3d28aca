"""Type of a problem, and exact maths shared by the families."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal


@dataclass(frozen=True)
class PythonProblem:
    """One problem.

    `program` is Python source that computes and prints the answer by another method; the tests run it in the sandbox.
    """

    question: str
    answer: str
    program: str
    checker: Literal["numeric", "exact"] = "numeric"


Family = Callable[[random.Random, int], PythonProblem]
"""Makes a problem of level 1 to 4 from a random generator."""


def as_text(value: Fraction | int) -> str:
    """Write a rational number as `7` or `-3/4`."""
    fraction = Fraction(value)
    return str(fraction.numerator) if fraction.denominator == 1 else f"{fraction.numerator}/{fraction.denominator}"


def factorise(number: int) -> dict[int, int]:
    factors: dict[int, int] = {}
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors[divisor] = factors.get(divisor, 0) + 1
            number //= divisor
        divisor += 1
    if number > 1:
        factors[number] = factors.get(number, 0) + 1
    return factors


def solve_linear(matrix: list[list[int]], right: list[int]) -> list[Fraction] | None:
    """Solve a square system by elimination over the rationals; None if it is singular."""
    size = len(right)
    rows = [[Fraction(cell) for cell in row] + [Fraction(value)] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = next((row for row in range(column, size) if rows[row][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [cell / rows[column][column] for cell in rows[column]]
        for row in range(size):
            if row != column:
                factor = rows[row][column]
                rows[row] = [cell - factor * above for cell, above in zip(rows[row], rows[column], strict=True)]
    return [row[-1] for row in rows]

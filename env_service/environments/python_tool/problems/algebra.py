"""Sequences and systems of linear equations."""

from __future__ import annotations

import random
from fractions import Fraction

from .problem import Problem, as_text, solve_linear


def sequences(rng: random.Random, level: int) -> Problem:
    """Arithmetic and geometric sequences, linear recurrences."""
    a, d, n = rng.randrange(2, 40), rng.randrange(3, 25), rng.randrange(15, 90)
    if level == 1:
        terms = ", ".join(str(a + i * d) for i in range(4))
        program = f"x = {a}\nfor _ in range({n - 1}):\n    x += {d}\nprint(x)"
        return Problem(
            f"What is term number {n} of the arithmetic sequence {terms}, ...?", str(a + (n - 1) * d), program
        )
    if level == 2:
        ratio, count = rng.randrange(2, 6), rng.randrange(6, 14)
        question = (
            f"What is the sum of the first {count} terms of the geometric sequence with first term {a} and "
            f"ratio {ratio}?"
        )
        return Problem(
            question,
            str(a * (ratio**count - 1) // (ratio - 1)),
            f"print(sum({a} * {ratio} ** k for k in range({count})))",
        )
    p, q, x, y = rng.randrange(1, 5), rng.randrange(1, 5), rng.randrange(0, 6), rng.randrange(1, 7)
    if level == 3:
        n = rng.randrange(10, 25)
        values = [x, y]
        while len(values) <= n:
            values.append(p * values[-1] + q * values[-2])
        question = f"A sequence has a(0) = {x}, a(1) = {y} and a(n) = {p}*a(n-1) + {q}*a(n-2). What is a({n})?"
        return Problem(
            question,
            str(values[n]),
            f"a, b = {x}, {y}\nfor _ in range({n}):\n    a, b = b, {p} * b + {q} * a\nprint(a)",
        )
    n, m = rng.randrange(500, 5000), rng.randrange(100, 1000)
    question = (
        f"A sequence has a(0) = {x}, a(1) = {y} and a(n) = {p}*a(n-1) + {q}*a(n-2). What is the remainder of "
        f"a({n}) modulo {m}?"
    )
    return Problem(question, str(_recurrence_mod(p, q, x, y, n, m)),
                   f"a, b = {x}, {y}\nfor _ in range({n}):\n    a, b = b, {p} * b + {q} * a\nprint(a % "
                   f"{m})")  # fmt: skip


def _recurrence_mod(p: int, q: int, x: int, y: int, n: int, m: int) -> int:
    """a(n) mod m by squaring the companion matrix."""

    def times(left: list[int], right: list[int]) -> list[int]:
        a, b, c, d = left
        e, f, g, h = right
        return [(a * e + b * g) % m, (a * f + b * h) % m, (c * e + d * g) % m, (c * f + d * h) % m]

    power, base = [1, 0, 0, 1], [p, q, 1, 0]
    while n:
        if n & 1:
            power = times(power, base)
        base = times(base, base)
        n >>= 1
    return (power[2] * y + power[3] * x) % m


def _equation(coefficients: list[int], names: str, right: int) -> str:
    parts = zip(coefficients, names, strict=True)
    terms = [
        f"{'-' if number < 0 else '+'} {'' if abs(number) == 1 else f'{abs(number)}*'}{name}"
        for number, name in parts
        if number
    ]
    return f"{' '.join(terms).removeprefix('+ ')} = {right}"


def linear_systems(rng: random.Random, level: int) -> Problem:
    """Two to four equations; from level 3 on the solution is rational."""
    size = {1: 2, 2: 3, 3: 3, 4: 4}[level]
    names = "xyzw"[:size]
    while True:
        matrix = [[rng.randrange(-6, 7) for _ in range(size)] for _ in range(size)]
        if level <= 2:
            solution = [rng.randrange(-9, 10) for _ in range(size)]
            right = [sum(c * v for c, v in zip(row, solution, strict=True)) for row in matrix]
        else:
            right = [rng.randrange(-20, 21) for _ in range(size)]
        values = solve_linear(matrix, right)
        if values is not None and all(any(row) for row in matrix):
            break
    wanted = rng.choice(names)
    system = "; ".join(_equation(row, names, value) for row, value in zip(matrix, right, strict=True))
    program = (
        "from sympy import Matrix\n"
        f"m, r = Matrix({matrix}), Matrix({right})\nm2 = m.copy()\nm2[:, {names.index(wanted)}] = r\nprint(m2.det() / "
        "m.det())"
    )
    value: Fraction = values[names.index(wanted)]
    return Problem(f"Solve the system {system}. What is {wanted}?", as_text(value), program)

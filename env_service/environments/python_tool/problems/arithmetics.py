"""Problem families: arithmetic, fractions, divisors, modular arithmetic, primes, linear systems and sequences."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from .problem import PythonProblem, as_text, factorise, solve_linear


def sequences(rng: random.Random, level: int) -> PythonProblem:
    a, d, n = rng.randrange(2, 40), rng.randrange(3, 25), rng.randrange(15, 90)
    if level == 1:
        terms = ", ".join(str(a + i * d) for i in range(4))
        program = f"x = {a}\nfor _ in range({n - 1}):\n    x += {d}\nprint(x)"
        return PythonProblem(
            f"What is term number {n} of the arithmetic sequence {terms}, ...?", str(a + (n - 1) * d), program
        )
    if level == 2:
        ratio, count = rng.randrange(2, 6), rng.randrange(6, 14)
        question = (
            f"What is the sum of the first {count} terms of the geometric sequence with first term {a} and "
            f"ratio {ratio}?"
        )
        return PythonProblem(
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
        return PythonProblem(
            question,
            str(values[n]),
            f"a, b = {x}, {y}\nfor _ in range({n}):\n    a, b = b, {p} * b + {q} * a\nprint(a)",
        )
    n, m = rng.randrange(500, 5000), rng.randrange(100, 1000)
    question = (
        f"A sequence has a(0) = {x}, a(1) = {y} and a(n) = {p}*a(n-1) + {q}*a(n-2). What is the remainder of "
        f"a({n}) modulo {m}?"
    )
    return PythonProblem(question, str(_recurrence_mod(p, q, x, y, n, m)),
                   f"a, b = {x}, {y}\nfor _ in range({n}):\n    a, b = b, {p} * b + {q} * a\nprint(a % "
                   f"{m})")  # fmt: skip


def _recurrence_mod(p: int, q: int, x: int, y: int, n: int, m: int) -> int:

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


def linear_systems(rng: random.Random, level: int) -> PythonProblem:
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
    return PythonProblem(f"Solve the system {system}. What is {wanted}?", as_text(value), program)


def arithmetic(rng: random.Random, level: int) -> PythonProblem:
    a, b, c, d = (rng.randrange(12, 99) for _ in range(4))
    if level == 1:
        return PythonProblem(f"Compute {a} * {b} + {c}.", str(a * b + c), f"print(sum([{a}] * {b}) + {c})")
    if level == 2:
        question = f"Compute ({a} * {b} - {c}) * {d} + {b} * {c}."
        return PythonProblem(
            question, str((a * b - c) * d + b * c), f"print(eval('({a} * {b} - {c}) * {d} + {b} * {c}'))"
        )
    if level == 3:
        m = rng.randrange(101, 999)
        program = f"r = 1\nfor _ in range({b}):\n    r = r * {a} % {m}\nprint(r)"
        return PythonProblem(f"What is the remainder when {a}^{b} is divided by {m}?", str(pow(a, b, m)), program)
    program = f"n, s = {a} ** {b}, 0\nwhile n:\n    n, r = divmod(n, 10)\n    s += r\nprint(s)"
    return PythonProblem(f"What is the sum of the decimal digits of {a}^{b}?", str(sum(map(int, str(a**b)))), program)


def fractions(rng: random.Random, level: int) -> PythonProblem:
    p, q, r, s = (rng.randrange(2, 20) for _ in range(4))
    head = "from fractions import Fraction as F\n"
    if level == 1:
        return PythonProblem(f"Compute {p}/{q} + {r}/{s} as a fraction in lowest "
                       "terms.", as_text(Fraction(p, q) + Fraction(r, s)),
                       f"{head}print(F({p}, {q}) + F({r}, {s}))")  # fmt: skip
    if level == 2:
        t = rng.randrange(2, 20)
        value = (Fraction(p, q) - Fraction(r, s)) * Fraction(t, q + 1)
        return PythonProblem(f"Compute ({p}/{q} - {r}/{s}) * {t}/{q + 1} as a fraction in lowest terms.",
                       as_text(value), f"{head}print((F({p}, {q}) - F({r}, {s})) * F({t}, {q + 1}))")  # fmt: skip
    if level == 3:
        n = rng.randrange(30, 300)
        question = f"Compute the sum of 1/(k*(k+{p})) for k from 1 to {n}, as a fraction in lowest terms."
        value = sum((Fraction(1, k) - Fraction(1, k + p) for k in range(1, n + 1)), Fraction(0)) / p
        return PythonProblem(
            question, as_text(value), f"{head}print(sum(F(1, k * (k + {p})) for k in range(1, {n + 1})))"
        )
    terms = [rng.randrange(1, 12) for _ in range(6)]
    value = Fraction(terms[-1])
    for term in reversed(terms[:-1]):
        value = term + 1 / value
    program = (
        f"t = {terms}\nh, k = [0, 1], [1, 0]\nfor a in t:\n    h.append(a * h[-1] + h[-2])\n    k.append(a * k[-1] + "
        "k[-2])\n"
        "print(f'{h[-1]}/{k[-1]}')"
    )
    question = (
        f"Write the continued fraction {terms} (that is, a0 + 1/(a1 + 1/(a2 + ...))) as a single fraction in "
        "lowest terms."
    )
    return PythonProblem(question, as_text(value), program)


def divisors(rng: random.Random, level: int) -> PythonProblem:
    if level == 1:
        g, a, b = rng.randrange(3, 40), rng.randrange(5, 60), rng.randrange(5, 60)
        program = f"print(max(d for d in range(1, {g * a + 1}) if {g * a} % d == 0 and {g * b} % d == 0))"
        return PythonProblem(
            f"What is the greatest common divisor of {g * a} and {g * b}?", str(math.gcd(g * a, g * b)), program
        )
    if level == 2:
        a, b, c = (rng.randrange(6, 60) for _ in range(3))
        program = f"n = {a}\nwhile n % {b} or n % {c}:\n    n += {a}\nprint(n)"
        return PythonProblem(f"What is the least common multiple of {a}, {b} and {c}?", str(math.lcm(a, b, c)), program)
    n = rng.randrange(500, 9000) * rng.choice((2, 6, 12))
    if level == 3:
        value = math.prod(exponent + 1 for exponent in factorise(n).values())
        return PythonProblem(
            f"How many positive divisors does {n} have?",
            str(value),
            f"print(sum({n} % d == 0 for d in range(1, {n + 1})))",
        )
    if rng.random() < 0.5:
        value = math.prod((p ** (e + 1) - 1) // (p - 1) for p, e in factorise(n).items())
        return PythonProblem(f"What is the sum of all positive divisors of {n}?", str(value),
                       f"print(sum(d for d in range(1, {n + 1}) if {n} % d == 0))")  # fmt: skip
    value = math.prod((p - 1) * p ** (e - 1) for p, e in factorise(n).items())
    program = f"from math import gcd\nprint(sum(gcd({n}, k) == 1 for k in range(1, {n + 1})))"
    return PythonProblem(f"How many integers from 1 to {n} are coprime to {n}?", str(value), program)


def modular(rng: random.Random, level: int) -> PythonProblem:
    if level == 1:
        a, b, m = rng.randrange(100, 999), rng.randrange(100, 999), rng.randrange(7, 60)
        return PythonProblem(
            f"What is {a} * {b} modulo {m}?", str(a % m * (b % m) % m), f"n = {a} * {b}\nprint(n - n // {m} * {m})"
        )
    if level == 2:
        a, b, digits = rng.randrange(3, 99), rng.randrange(20, 400), rng.choice((1, 2))
        name = "the last digit" if digits == 1 else "the number formed by the last two digits"
        return PythonProblem(
            f"What is {name} of {a}^{b}?", str(pow(a, b, 10**digits)), f"print(int(str({a} ** {b})[-{digits}:]))"
        )
    if level == 3:
        m = rng.randrange(50, 400)
        a = rng.choice([value for value in range(3, m) if math.gcd(value, m) == 1])
        program = f"print(next(x for x in range(1, {m}) if {a} * x % {m} == 1))"
        return PythonProblem(
            f"What is the inverse of {a} modulo {m}, between 1 and {m - 1}?", str(pow(a, -1, m)), program
        )
    p, q, r = rng.sample((5, 7, 8, 9, 11, 13, 17, 19, 23), 3)
    a, b, c = rng.randrange(p), rng.randrange(q), rng.randrange(1, r)
    n = p * q * r
    value = (a * q * r * pow(q * r, -1, p) + b * p * r * pow(p * r, -1, q) + c * p * q * pow(p * q, -1, r)) % n
    question = (
        f"Find the smallest positive integer that leaves remainder {a} modulo {p}, {b} modulo {q} and {c} modulo {r}."
    )
    program = f"print(next(x for x in range(1, {n + 1}) if x % {p} == {a} and x % {q} == {b} and x % {r} == {c}))"
    return PythonProblem(question, str(value), program)


def _sieve(limit: int) -> list[int]:
    alive = bytearray([1]) * (limit + 1)
    alive[:2] = b"\0\0"
    for n in range(2, math.isqrt(limit) + 1):
        if alive[n]:
            alive[n * n :: n] = bytes(len(range(n * n, limit + 1, n)))
    return [n for n in range(limit + 1) if alive[n]]


_TRIAL = "def prime(n):\n    return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))\n"


def primes(rng: random.Random, level: int) -> PythonProblem:
    if level == 1:
        n = rng.randrange(50, 900)
        value = next(p for p in _sieve(1000) if p > n)
        return PythonProblem(f"What is the smallest prime greater than {n}?", str(value),
                       f"{_TRIAL}n = {n + 1}\nwhile not prime(n):\n    n += 1\nprint(n)")  # fmt: skip
    if level == 2:
        n = rng.randrange(2000, 60000)
        program = f"{_TRIAL}print(max(d for d in range(2, {n + 1}) if {n} % d == 0 and prime(d)))"
        return PythonProblem(f"What is the largest prime factor of {n}?", str(max(factorise(n))), program)
    low = rng.randrange(1000, 9000)
    high = low + rng.randrange(200, 900)
    between = [p for p in _sieve(high) if p >= low]
    if level == 3:
        program = f"{_TRIAL}print(sum(prime(n) for n in range({low}, {high + 1})))"
        return PythonProblem(
            f"How many primes lie between {low} and {high}, both included?", str(len(between)), program
        )
    digit = rng.choice((1, 3, 7, 9))
    value = sum(p for p in between if p % 10 == digit)
    program = f"{_TRIAL}print(sum(n for n in range({low}, {high + 1}) if n % 10 == {digit} and prime(n)))"
    return PythonProblem(
        f"What is the sum of the primes between {low} and {high} whose last digit is {digit}?", str(value), program
    )

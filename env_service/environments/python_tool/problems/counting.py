"""Combinatorics, counting with conditions, and probability."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from .problem import PythonProblem, as_text

_WORDS = ("banana", "level", "mississippi", "pepper", "tattoo", "coffee", "cannon", "balloon", "success",
    "bookkeeper", "parallel",
          "committee", "assess", "giggle", "rotor", "ferret", "kayak", "noon", "refer", "ballot", "cabbage", "eleven",
          "hammock",
          "lollipop", "mammal", "needle", "pattern", "raccoon", "settee", "toffee", "vacuum", "weekend",
          "zigzag")  # fmt: skip


def combinatorics(rng: random.Random, level: int) -> PythonProblem:
    if level == 1:
        n, k = rng.randrange(8, 30), rng.randrange(2, 6)
        program = f"from itertools import combinations\nprint(sum(1 for _ in combinations(range({n}), {k})))"
        return PythonProblem(
            f"In how many ways can {k} of {n} different books be chosen?", str(math.comb(n, k)), program
        )
    if level == 2:
        word = rng.choice(_WORDS)
        value = math.factorial(len(word)) // math.prod(math.factorial(word.count(letter)) for letter in set(word))
        program = (
            f"from math import comb\nfrom collections import Counter\nn, r = {len(word)}, 1\n"
            f"for c in Counter('{word}').values():\n    r *= comb(n, c)\n    n -= c\nprint(r)"
        )
        return PythonProblem(
            f"How many different arrangements do the letters of the word '{word}' have?", str(value), program
        )
    if level == 3:
        w, h = rng.randrange(5, 14), rng.randrange(5, 14)
        x, y = rng.randrange(1, w), rng.randrange(1, h)
        value = math.comb(w + h, w) - math.comb(x + y, x) * math.comb(w - x + h - y, w - x)
        question = (
            f"How many paths of unit steps right and up lead from (0,0) to ({w},{h}) without passing through ({x},{y})?"
        )
        program = (
            f"g = {{}}\nfor i in range({w + 1}):\n    for j in range({h + 1}):\n"
            f"        g[i, j] = 0 if (i, j) == ({x}, {y}) else 1 if i == j == 0 else g.get((i - 1, j), 0) + g.get((i, "
            "j - 1), 0)\n"
            f"print(g[{w}, {h}])"
        )
        return PythonProblem(question, str(value), program)
    k, top, total = rng.randrange(4, 7), rng.randrange(5, 12), rng.randrange(15, 30)
    value = sum(
        (-1) ** j * math.comb(k, j) * math.comb(total - j * (top + 1) + k - 1, k - 1)
        for j in range(k + 1)
        if total >= j * (top + 1)
    )
    question = f"In how many ways can {total} be written as an ordered sum of {k} integers, each from 0 to {top}?"
    program = (
        f"w = {{0: 1}}\nfor _ in range({k}):\n    n = {{}}\n    for s, c in w.items():\n        for d in "
        f"range({top + 1}):\n"
        f"            n[s + d] = n.get(s + d, 0) + c\n    w = n\nprint(w.get({total}, 0))"
    )
    return PythonProblem(question, str(value), program)


def _digit_sum_count(digits: int, total: int) -> int:
    """Count the integers below 10**digits whose digits add up to `total`, by inclusion and exclusion."""
    terms = range(min(digits, total // 10) + 1)
    return sum((-1) ** j * math.comb(digits, j) * math.comb(total - 10 * j + digits - 1, digits - 1) for j in terms)


def conditions(rng: random.Random, level: int) -> PythonProblem:
    n = rng.randrange(200, 5000)
    a, b, c = rng.sample((3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 3)
    if level == 1:
        return PythonProblem(f"How many positive integers up to {n} are divisible by {a}?", str(n // a),
                       f"print(sum(k % {a} == 0 for k in range(1, {n + 1})))")  # fmt: skip
    if level == 2:
        value = n // a + n // b - n // math.lcm(a, b)
        program = f"print(len([k for k in range(1, {n + 1}) if k % {a} == 0 or k % {b} == 0]))"
        return PythonProblem(
            f"How many positive integers up to {n} are divisible by {a} or by {b}?", str(value), program
        )
    if level == 3:
        value = n - n // a - n // b - n // c
        value += n // math.lcm(a, b) + n // math.lcm(a, c) + n // math.lcm(b, c) - n // math.lcm(a, b, c)
        program = f"print(len([k for k in range(1, {n + 1}) if k % {a} and k % {b} and k % {c}]))"
        return PythonProblem(
            f"How many positive integers up to {n} are divisible by none of {a}, {b} and {c}?", str(value), program
        )
    digits, total = rng.choice((4, 5)), rng.randrange(5, 31)
    question = f"How many non-negative integers below {10**digits} have digits that add up to {total}?"
    program = f"print(sum(sum(map(int, str(k))) == {total} for k in range({10**digits})))"
    return PythonProblem(question, str(_digit_sum_count(digits, total)), program)


_F = "from fractions import Fraction as F\n"


def probability(rng: random.Random, level: int) -> PythonProblem:
    """Dice, coins, urns and the first of repeated trials; answers are fractions."""
    if level == 1:
        total = rng.randrange(3, 12)
        sides = rng.choice((6, 8, 10, 12))
        count = sum(1 for first in range(1, sides + 1) if 1 <= total - first <= sides)
        program = f"{_F}r = range(1, {sides + 1})\nprint(F(sum(a + b == {total} for a in r for b in r), {sides**2}))"
        question = f"Two fair {sides}-sided dice are rolled. What is the probability that their sum is {total}?"
        return PythonProblem(question, as_text(Fraction(count, sides**2)), program)
    if level == 2:
        n = rng.randrange(5, 13)
        k = rng.randrange(2, n)
        program = f"{_F}print(F(sum(bin(i).count('1') >= {k} for i in range({2**n})), {2**n}))"
        value = Fraction(sum(math.comb(n, j) for j in range(k, n + 1)), 2**n)
        return PythonProblem(
            f"A fair coin is tossed {n} times. What is the probability of at least {k} heads?", as_text(value), program
        )
    if level == 3:
        red, blue, draws = rng.randrange(4, 9), rng.randrange(4, 9), rng.randrange(3, 5)
        want = rng.randrange(1, draws)
        value = Fraction(math.comb(red, want) * math.comb(blue, draws - want), math.comb(red + blue, draws))
        question = (
            f"An urn holds {red} red and {blue} blue balls; {draws} are drawn without replacement. "
            f"What is the probability that exactly {want} of them {'is' if want == 1 else 'are'} red?"
        )
        program = (
            f"{_F}from itertools import combinations\nd = list(combinations([1] * {red} + [0] * {blue}, {draws}))\n"
            f"print(F(sum(sum(x) == {want} for x in d), len(d)))"
        )
        return PythonProblem(question, as_text(value), program)
    goal, start, p, q = rng.randrange(5, 10), rng.randrange(1, 5), *rng.sample(range(1, 8), 2)
    ratio = Fraction(q, p)
    value = (1 - ratio**start) / (1 - ratio**goal)
    question = (
        f"A player with {start} coins plays rounds, each won with probability {p}/{p + q} (gaining a coin, else "
        "losing one), until "
        f"holding 0 or {goal} coins. What is the probability of ending with {goal} coins?"
    )
    program = (
        f"{_F}p = F({p}, {p + q})\na, b = [F(0), F(1)], 0\nfor i in range(1, {goal}):\n"
        f"    a.append((a[i] - (1 - p) * a[i - 1]) / p)\nprint(a[{start}] / a[{goal}])"
    )
    return PythonProblem(question, as_text(value), program)

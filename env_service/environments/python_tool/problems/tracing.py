"""Short programs: what do they print?"""

from __future__ import annotations

import contextlib
import io
import random
import string

from .problem import Problem


def _printed(source: str) -> str:
    """Run a program that this module wrote and return what it prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(source, "<traced>", "exec"), {})
    return output.getvalue().strip()


def _loop(rng: random.Random) -> str:
    start, stop, step, factor = rng.randrange(1, 5), rng.randrange(8, 16), rng.randrange(1, 4), rng.randrange(2, 5)
    return f"total = 0\nfor i in range({start}, {stop}, {step}):\n    total += i * {factor}\nprint(total)"


def _text(rng: random.Random) -> str:
    word = "".join(rng.choice(string.ascii_lowercase) for _ in range(rng.randrange(7, 11)))
    step, cut = rng.randrange(2, 4), rng.randrange(2, 5)
    return f'word = "{word}"\npart = word[::-1][{cut}:] + word[::{step}]\nprint(part.replace(part[0], part[0].upper()))'


def _collection(rng: random.Random) -> str:
    numbers = [rng.randrange(1, 30) for _ in range(7)]
    modulus, bound = rng.randrange(2, 6), rng.randrange(8, 20)
    return (
        f"groups = {{}}\nfor n in {numbers}:\n    groups.setdefault(n % {modulus}, []).append(n)\n"
        f"result = [sum(g) if len(g) > 1 else -g[0] for _, g in sorted(groups.items())]\n"
        f"print([r for r in result if r < {bound}] + [len(groups)])"
    )


def _recursion(rng: random.Random) -> str:
    a, b, c, n, m = (
        rng.randrange(2, 5),
        rng.randrange(1, 4),
        rng.randrange(1, 6),
        rng.randrange(20, 70),
        rng.randrange(50, 200),
    )
    return (
        f"def f(n, depth=0):\n    if n < {c + 1}:\n        return n + depth\n"
        f"    if n % 2:\n        return (f(n - {b}, depth + 1) * {a} + n) % {m}\n"
        f"    return (f(n // 2, depth + 1) + f(n - {c}, depth + 1)) % {m}\nprint(f({n}))"
    )


def code_tracing(rng: random.Random, level: int) -> Problem:
    """Loops, strings, collections, recursion."""
    source = (_loop, _text, _collection, _recursion)[level - 1](rng)
    return Problem(f"What does this Python program print?\n\n{source}", _printed(source), source, "exact")

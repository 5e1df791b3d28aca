"""Generator of the shipped problem files: `python -m env_service.environments.python_tool.problems.generate DIR`.

The output is deterministic: every problem follows from its split, family, level and number. No question occurs twice
over all splits. The family `code_tracing` asks what short programs print.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import string
from collections.abc import Iterator
from pathlib import Path

from .arithmetics import arithmetic, divisors, fractions, linear_systems, modular, primes, sequences
from .counting import combinatorics, conditions, probability
from .problem import Family, PythonProblem


def _printed(source: str) -> str:
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


def code_tracing(rng: random.Random, level: int) -> PythonProblem:
    source = (_loop, _text, _collection, _recursion)[level - 1](rng)
    return PythonProblem(f"What does this Python program print?\n\n{source}", _printed(source), source, "exact")


FAMILIES: dict[str, Family] = {
    "arithmetic": arithmetic,
    "fractions": fractions,
    "divisors": divisors,
    "modular": modular,
    "primes": primes,
    "combinatorics": combinatorics,
    "conditions": conditions,
    "probability": probability,
    "sequences": sequences,
    "linear_systems": linear_systems,
    "code_tracing": code_tracing,
}
LEVELS = (1, 2, 3, 4)
PER_CELL = {"train": 7, "dev": 2, "test": 3}
"""Problems per family and level, by split."""

_TRIES = 1000


def _unseen(family: Family, level: int, rng: random.Random, seen: set[str]) -> PythonProblem:
    for _ in range(_TRIES):
        problem = family(rng, level)
        if problem.question not in seen:
            seen.add(problem.question)
            return problem
    raise RuntimeError(f"family {family.__name__!r} has no unseen problem of level {level} left; ask for fewer")


def generate() -> Iterator[tuple[str, dict[str, object], PythonProblem]]:
    seen: set[str] = set()
    for split, count in PER_CELL.items():
        for name, family in FAMILIES.items():
            for level in LEVELS:
                rng = random.Random(f"{split}/{name}/{level}")
                for number in range(count):
                    problem = _unseen(family, level, rng, seen)
                    record: dict[str, object] = {
                        "id": f"{split}.{name}.L{level}.{number}",
                        "question": problem.question,
                        "answer": problem.answer,
                        "checker": problem.checker,
                        "family": name,
                        "level": level,
                    }
                    yield split, record, problem


def write(folder: Path) -> dict[str, int]:
    """Write `<split>.jsonl` for every split; return the numbers of problems."""
    lines: dict[str, list[str]] = {split: [] for split in PER_CELL}
    for split, record, _ in generate():
        lines[split].append(json.dumps(record, ensure_ascii=False) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    for split, texts in lines.items():
        (folder / f"{split}.jsonl").write_text("".join(texts), encoding="utf-8")
    return {split: len(texts) for split, texts in lines.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the generated maths and code problems as JSON lines.")
    parser.add_argument("folder", type=Path, help="folder for train.jsonl, dev.jsonl and test.jsonl")
    print(json.dumps(write(parser.parse_args().folder)))


if __name__ == "__main__":
    main()

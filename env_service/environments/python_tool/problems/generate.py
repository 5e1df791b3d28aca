"""Write the shipped problem files, always the same bytes: `python -m
env_service.environments.python_tool.problems.generate DIR`.

Every problem follows from its split, family, level and number; a question occurs once over all splits.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from .algebra import linear_systems, sequences
from .arithmetics import arithmetic, divisors, fractions, modular, primes
from .counting import combinatorics, conditions, probability
from .problem import Family, Problem
from .tracing import code_tracing

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


def _unseen(family: Family, level: int, rng: random.Random, seen: set[str]) -> Problem:
    for _ in range(_TRIES):
        problem = family(rng, level)
        if problem.question not in seen:
            seen.add(problem.question)
            return problem
    raise RuntimeError(f"family {family.__name__!r} has no unseen problem of level {level} left; ask for fewer")


def generate() -> Iterator[tuple[str, dict[str, object], Problem]]:
    """Yield (split, record of the task file, problem) in file order."""
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
    """Write `<split>.jsonl` for every split; return how many problems each holds."""
    lines: dict[str, list[str]] = {split: [] for split in PER_CELL}
    for split, record, _ in generate():
        lines[split].append(json.dumps(record, ensure_ascii=False) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    for split, texts in lines.items():
        (folder / f"{split}.jsonl").write_text("".join(texts), encoding="utf-8")
    return {split: len(texts) for split, texts in lines.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the generated maths and code problems as JSON lines.")
    parser.add_argument("folder", type=Path, help="folder for train.jsonl, dev.jsonl and test.jsonl")
    print(json.dumps(write(parser.parse_args().folder)))


if __name__ == "__main__":
    main()

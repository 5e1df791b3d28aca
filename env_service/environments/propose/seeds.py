"""Seeds of proposals, as task ids.

`calc.left.3.f.00017` asks for a question of calc that begins with `left 3 f`, `python.primes.search.3.00017` for a
level-3 problem on primes, solved by a search; the number selects a setting. A list goes through all combinations before
it repeats one. Each split has its own numbers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice, product
from typing import Any

from env_service.environments.calc.grammar import DIGITS, FAMILIES, OPERATORS
from env_service.environments.propose.topics import LEVELS, SETTINGS, SKILLS, TOPICS

WORLDS = ("calc", "python")
FIRST_NUMBER = {"train": 0, "dev": 80_000, "test": 90_000}
_SIZE = 480
_MOST = 100_000
_NUMBER = re.compile(r"\d{5}")


@dataclass(frozen=True, slots=True)
class CalcSeed:
    family: str
    operand: str
    operator: str

    world = "calc"

    def __str__(self) -> str:
        return f"{self.family} {self.operand} {self.operator}"


@dataclass(frozen=True, slots=True)
class PythonSeed:
    topic: str
    skill: str
    level: int
    setting: str

    world = "python"


Seed = CalcSeed | PythonSeed


def read_seed(task_id: str) -> Seed:
    parts = task_id.split(".")
    if len(parts) == 5 and _NUMBER.fullmatch(parts[4], 0) and parts[4].isascii():
        world, first, second, third, number = parts
        if world == "calc" and first in FAMILIES and second in DIGITS and third in OPERATORS:
            return CalcSeed(first, second, third)
        if world == "python" and first in TOPICS and second in SKILLS and third in map(str, LEVELS):
            return PythonSeed(first, second, int(third), SETTINGS[int(number) % len(SETTINGS)])
    raise ValueError(
        f"unknown task {task_id[:120]!r} of propose; ids are calc.FAMILY.DIGIT.OPERATOR.NUMBER and "
        "python.TOPIC.SKILL.LEVEL.NUMBER with five digits, calc.left.3.f.00017 for example"
    )


def seed_ids(split: str, params: Mapping[str, Any] | None = None) -> list[str]:
    """Return `count` ids of a split from `offset` on, for `world` (default calc)."""
    if split not in FIRST_NUMBER:
        raise ValueError(f"unknown split {split!r} of propose; splits are {', '.join(FIRST_NUMBER)}")
    wanted = dict(params or {})
    world, size, offset = wanted.pop("world", WORLDS[0]), wanted.pop("count", _SIZE), wanted.pop("offset", 0)
    if wanted:
        raise ValueError(f"unknown parameter {next(iter(wanted))!r}; known: world, count, offset")
    if world not in WORLDS:
        raise ValueError(f"parameter world={world!r} must be one of {', '.join(WORLDS)}")
    for name, value, least in (("count", size, 1), ("offset", offset, 0)):
        if type(value) is not int or not least <= value <= _MOST:
            raise ValueError(f"parameter {name}={value!r} must be a whole number from {least} to {_MOST}")
    combinations = list(product(FAMILIES, DIGITS, OPERATORS)) if world == "calc" else [
        (topic, skill, str(level)) for topic, skill, level in product(TOPICS, SKILLS, sorted(LEVELS))
    ]  # fmt: skip
    return list(islice(_ids(world, split, combinations), offset, offset + size))


def _ids(world: str, split: str, combinations: list[tuple[str, str, str]]) -> Iterator[str]:
    for number in count(FIRST_NUMBER[split]):
        for parts in random.Random(f"propose {world} {number}").sample(combinations, len(combinations)):
            yield ".".join((world, *parts, f"{number:05}"))

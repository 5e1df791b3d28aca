"""Tasks and splits of calc: an id is `left.5.00012`: family, number of operands, number.

The distinct questions of a family and level are drawn in one order: dev gets the first numbers, then test, then train.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from env_service.environments.calc.grammar import FAMILIES, MAX_OPERANDS, MIN_OPERANDS, CalcQuestion, draw_question

LEVELS = range(MIN_OPERANDS, MAX_OPERANDS + 1)
SPLITS = {"train": range(32, 92), "dev": range(8), "test": range(8, 32)}
"""The numbers of each level and family."""

_ID = re.compile(r"(left|right)\.(\d)\.(\d{5})", re.ASCII)
_N = max(numbers.stop for numbers in SPLITS.values())


def question_of(task_id: str) -> CalcQuestion:
    match = _ID.fullmatch(task_id)
    if match is None or int(match[2]) not in LEVELS or int(match[3]) >= _N:
        raise ValueError(
            f"unknown task {task_id[:120]!r} of calc; ids are FAMILY.OPERANDS.NUMBER, {FAMILIES[0]}.{LEVELS[-1]}.00012 "
            f"for example, with numbers below {_N}"
        )
    return _questions(match[1], int(match[2]))[int(match[3])]


def held_out() -> frozenset[str]:
    return frozenset(str(question_of(task_id)) for split in ("dev", "test") for task_id in task_ids(split))


def task_ids(split: str, params: Mapping[str, Any] | None = None) -> list[str]:
    """Return the ids of a split, shortest questions first; `level` or `levels` and `family` narrow it."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r} of calc; splits are {', '.join(SPLITS)}")
    wanted = dict(params or {})
    family, level = wanted.pop("family", None), wanted.pop("level", None)
    levels = wanted.pop("levels", None)
    if wanted:
        raise ValueError(f"unknown parameter {next(iter(wanted))!r}; known: family, level, levels")
    if family is not None and family not in FAMILIES:
        raise ValueError(f"parameter family={family!r} must be one of {', '.join(FAMILIES)}")
    if level is not None and levels is not None:
        raise ValueError("give level or levels, not both")
    chosen = [level] if level is not None else levels if levels is not None else list(LEVELS)
    if not isinstance(chosen, list) or not chosen or not all(type(one) is int and one in LEVELS for one in chosen):
        raise ValueError(f"levels of calc are whole numbers from {LEVELS[0]} to {LEVELS[-1]}; got {chosen!r}")
    return [
        f"{name}.{one}.{number:05}"
        for one in sorted(set(chosen))
        for name in FAMILIES
        if family in (None, name)
        for number in SPLITS[split]
    ]


@lru_cache(maxsize=len(FAMILIES) * len(LEVELS))
def _questions(family: str, level: int) -> list[CalcQuestion]:
    rng = random.Random(f"calc tasks {family} {level}")
    drawn: dict[CalcQuestion, None] = {}
    while len(drawn) < _N:
        drawn.setdefault(draw_question(rng, family, level))
    return list(drawn)

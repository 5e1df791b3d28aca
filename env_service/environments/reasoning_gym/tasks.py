"""Tasks of the generators: an id is `GENERATOR.LEVEL.SEED`, for example `chain_sum.2.17`. Seeds are unlimited, and
separate for each split."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from agentevolver.utils.names import did_you_mean

FIRST_SEED = {"train": 0, "dev": 1_000_000_000, "test": 1_500_000_000}
"""The first seed of each split; train has all below dev's."""
_LAST_SEED = 2_000_000_000
_SIZE = 512
_MOST = 1_000_000
_ID = re.compile(r"([a-z][a-z0-9_]{0,63})\.(\d)\.(\d{1,10})", re.ASCII)

Levels = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class TaskName:
    generator: str
    level: int
    seed: int

    def __str__(self) -> str:
        return f"{self.generator}.{self.level}.{self.seed}"


def read_id(task_id: str, levels: Levels) -> TaskName:
    match = _ID.fullmatch(task_id)
    if match is None:
        raise ValueError(
            f"unknown task {task_id[:120]!r} of reasoning_gym; ids are GENERATOR.LEVEL.SEED, chain_sum.0.17 for example"
        )
    name = TaskName(match[1], int(match[2]), int(match[3]))
    _check_generator(name.generator, levels)
    if name.level not in levels[name.generator]:
        raise ValueError(f"task {task_id!r}: the levels of {name.generator} are {list(levels[name.generator])}")
    if name.seed >= _LAST_SEED or str(name) != task_id:
        raise ValueError(f"task {task_id!r}: a seed is a whole number below {_LAST_SEED}, without leading zeros")
    return name


def task_ids(split: str, params: Mapping[str, Any] | None, levels: Levels) -> list[str]:
    """Return `count` ids of a split after `offset`, from all generators by turns. `generators` (names, or names with
    weights), `level` and `levels` narrow them. A longer list begins with the shorter one. Raises ValueError."""
    if split not in FIRST_SEED:
        raise ValueError(f"unknown split {split!r} of reasoning_gym; splits are {', '.join(FIRST_SEED)}")
    wanted = dict(params or {})
    size, offset = wanted.pop("count", _SIZE), wanted.pop("offset", 0)
    generators, level = wanted.pop("generators", None), wanted.pop("level", None)
    chosen = wanted.pop("levels", None)
    if wanted:
        raise ValueError(f"unknown parameter {next(iter(wanted))!r}; known: generators, level, levels, count, offset")
    for name, value, least in (("count", size, 1), ("offset", offset, 0)):
        if type(value) is not int or not least <= value <= _MOST:
            raise ValueError(f"parameter {name}={value!r} must be a whole number from {least} to {_MOST}")
    if level is not None and chosen is not None:
        raise ValueError("give level or levels, not both")
    weights = _weights(generators, levels)
    of = _narrowed(weights, levels, [level] if level is not None else chosen)
    return list(islice(_ids(split, of, weights if isinstance(generators, Mapping) else None), offset, offset + size))


def _ids(split: str, levels: Levels, weights: Mapping[str, float] | None) -> Iterator[str]:
    names, number = list(levels), 0
    while True:
        rng = random.Random(f"reasoning_gym {split} {number}")
        if weights is None:
            turn = rng.sample(names, len(names))
        else:
            turn = rng.choices(names, [weights[name] for name in names], k=len(names))
        for name in turn:
            yield str(TaskName(name, rng.choice(list(levels[name])), FIRST_SEED[split] + number))
            number += 1


def _weights(generators: Any, levels: Levels) -> dict[str, float]:
    if generators is None:
        return dict.fromkeys(levels, 1.0)
    named = isinstance(generators, Mapping)
    if not (named or isinstance(generators, list)) or not generators:
        raise ValueError(f"parameter generators={generators!r} must be a list of names, or names with their weights")
    found: dict[str, float] = {}
    for name in generators:
        _check_generator(name, levels)
        weight = generators[name] if named else 1
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < 1e9:
            raise ValueError(f"parameter generators: the weight of {name} is {weight!r}, expected a positive number")
        found[name] = float(weight)
    return found


def _narrowed(names: Mapping[str, float], levels: Levels, chosen: Any) -> dict[str, list[int]]:
    if chosen is None:
        return {name: list(levels[name]) for name in names}
    if not isinstance(chosen, list) or not chosen or not all(type(one) is int for one in chosen):
        raise ValueError(f"levels of reasoning_gym are whole numbers from 0 on; got {chosen!r}")
    found = {name: [one for one in levels[name] if one in chosen] for name in names}
    found = {name: own for name, own in found.items() if own}
    if not found:
        raise ValueError(f"none of the generators has one of the levels {chosen}")
    return found


def _check_generator(name: Any, levels: Levels) -> None:
    if not isinstance(name, str) or name not in levels:
        hint = did_you_mean(str(name), levels, f"there are {len(levels)}, see its README")
        raise ValueError(f"unknown generator {str(name)[:80]!r} of reasoning_gym; {hint}")

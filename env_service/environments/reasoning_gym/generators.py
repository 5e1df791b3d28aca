"""Generators of the package, run in the sandbox: the tasks by name, level and seed, and their verdicts.

Its text is sent there (`library`), so it imports nothing of the project. A level is 0 for a generator's defaults, and n
for the n-th step of its curriculum.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum

# Several generators at once, which a list of tasks is itself.
LEFT_OUT = ("composite",)
MOST_LEVELS = 5
# First steps of a curriculum at which making one item takes longer than two seconds, or never ends well.
TOO_FAR = {"jugs": 3, "n_queens": 5, "sokoban": 1}
# Behind the seeds of all tasks: the next draw of a task whose right answer is the empty text, which nobody can give.
NEXT_DRAW = 2_000_000_000
# Where the package keeps a right answer of what has several.
ORACLES = ("example_correct_answer", "example_answer", "possible_answer")


def catalogue() -> dict[str, list[int]]:
    return {name: _levels(name) for name in sorted(DATASETS) if name not in LEFT_OUT}


def item(name: str, level: int, seed: int) -> dict[str, Any]:
    """Return a task's question and a right answer (None if the package gives none)."""
    entry = _made(name, level, seed)[1]
    answer = entry["answer"]
    if answer is None:
        known = next((entry["metadata"][key] for key in ORACLES if entry["metadata"].get(key) is not None), None)
        answer = known if known is None or isinstance(known, str) else json.dumps(known)
    return {"question": str(entry["question"]), "answer": None if answer is None else str(answer)}


def verdict(name: str, level: int, seed: int, answer: str) -> float:
    """Return the package's score of an answer in 0..1; 0 if its scorer cannot read the answer."""
    dataset, entry = _made(name, level, seed)
    if name == "game_of_life_halting":  # the package takes any text for a yes
        return float(answer.strip().casefold() == str(entry["answer"]).casefold())
    try:
        score = float(dataset.score_answer(answer, entry))
    except Exception:
        return 0.0
    return min(max(score, 0.0), 1.0) if score == score else 0.0


def _made(name: str, level: int, seed: int) -> tuple[Any, dict[str, Any]]:
    while True:
        # Some generators draw from the interpreter's own generators instead of their seed's.
        random.seed(seed)
        np.random.seed(seed % 2**32)
        dataset = DATASETS[name][0](_configuration(name, level, seed))
        entry = dataset[0]
        if entry["answer"] != "":
            return dataset, entry
        seed += NEXT_DRAW


def _configuration(name: str, level: int, seed: int) -> Any:
    if level == 0:
        made = DATASETS[name][1](seed=seed, size=1)
    else:
        curriculum = create_curriculum(name)
        for attribute in curriculum.attributes.values():
            curriculum.set_attr_level(attribute.name, min(level, len(attribute.levels)) - 1)
        made = curriculum.generate_configuration({"seed": seed, "size": 1})
    if hasattr(made, "validate"):
        made.validate()
    return made


def _levels(name: str) -> list[int]:
    if name not in CURRICULA:
        return [0]
    steps = max((len(one.levels) for one in create_curriculum(name).attributes.values()), default=0)
    found = [0]
    for level in range(1, min(steps, MOST_LEVELS, TOO_FAR.get(name, MOST_LEVELS + 1) - 1) + 1):
        try:
            _configuration(name, level, 0)
        except Exception:
            continue
        found.append(level)
    return found

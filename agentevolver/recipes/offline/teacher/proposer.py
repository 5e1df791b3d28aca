"""Proposer role, and the judge's answers to proposals: chains of calc, by its words alone.

What the operators do is known to calc's calculator and not here: as a judge the stand-in repeats what the proposal's
program printed.
"""

from __future__ import annotations

from typing import Any

from agentevolver.recipes.offline.teacher.prompt import Draws, NotUnderstood, Prompt
from env_service.environments.calc.grammar import DIGITS, FAMILIES, OPERATORS

# Operands of a proposed chain, with their weights.
LENGTHS = [(3, 1.0), (4, 2.0), (5, 3.0), (6, 2.0), (7, 1.0)]


def task(prompt: Prompt, draws: Draws) -> str:
    """`proposer/task`: a chain that begins as it was asked to."""
    words = prompt.text("task").split()
    if len(words) != 3 or words[0] not in FAMILIES or words[1] not in DIGITS or words[2] not in OPERATORS:
        raise NotUnderstood(f"proposer/task: {' '.join(words)[:80]!r} is no seed of calc, like 'left 3 f'")
    length = draws.pick(LENGTHS)
    if draws.errs(draws.rates.hallucinated):
        draws.plant("another beginning", seed=" ".join(words))
        words[1] = DIGITS[(int(words[1]) + 1) % len(DIGITS)]
    while len(words) < 2 * length:
        words += [draws.rng.choice(DIGITS), draws.rng.choice(OPERATORS)]
    return f"<question>{' '.join(words[: 2 * length - 1])} {draws.rng.choice(DIGITS)}</question>"


def answer(prompt: Prompt, draws: Draws) -> dict[str, Any]:
    """`judge/answer`: what the program printed; without one there is no telling."""
    prompt.text("task")
    printed = prompt.sections.get("reference", "").strip()
    if printed not in DIGITS:
        return {"reason": "nothing says what the operators do", "answer": None}
    if draws.errs(draws.rates.wrong_grades):
        draws.plant("wrong answer", right=printed)
        printed = DIGITS[(int(printed) + 1) % len(DIGITS)]
    return {"reason": "the program printed it", "answer": printed}

"""Explanation of step advantages: outcome part + label part + what comes after, and what later stages made of the sum.

Reads what the pipeline recorded (`CreditParts`) and computes nothing anew, so it says what was trained on. A record
without parts (an older run's, or stages that tell none) is explained as far as its step rewards go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentevolver.types import StepCredit

# Recorded numbers are rounded to 6 digits; a sum of four may be this far off.
ROUNDING = 5e-6


@dataclass(frozen=True, slots=True)
class Explained:
    """Advantage of one step, taken apart: (outcome + label + later) x scale + rest.

    `outcome`, `label` and `later` are as in `CreditParts`, None where they were not recorded. `scale` is the factor of
    the stages after, None where there is none; `rest` what they added that is no factor.
    """

    advantage: float
    outcome: float | None = None
    label: float | None = None
    later: float | None = None
    scale: float | None = None
    rest: float | None = None


def explained(credit: StepCredit) -> list[Explained]:
    """Return each step's advantage with what it is made of."""
    if credit.parts is None:
        return [Explained(advantage) for advantage in credit.advantages]
    parts = zip(credit.parts.outcome, credit.parts.label, credit.parts.later, credit.advantages, strict=True)
    steps = [(sum(own), own, advantage) for *own, advantage in parts]
    factor = _factor([(total, advantage) for total, _, advantage in steps])
    found = []
    for total, (outcome, label, later), advantage in steps:
        left = advantage - (total if factor is None else total * factor)
        rest = left if abs(left) > ROUNDING * max(1.0, abs(factor or 1.0)) else None
        found.append(Explained(advantage, outcome, label, later, factor, rest))
    return found


def _factor(steps: Sequence[tuple[float, float]]) -> float | None:
    """Return the one factor between sums and advantages; None if it is 1, or if there is no such factor."""
    if all(abs(advantage - total) <= ROUNDING for total, advantage in steps):
        return None
    largest = max(steps, key=lambda step: abs(step[0]))
    if abs(largest[0]) <= ROUNDING:
        return None
    factor = largest[1] / largest[0]
    fits = all(abs(advantage - factor * total) <= 2 * ROUNDING * max(1.0, abs(factor)) for total, advantage in steps)
    return factor if fits else None

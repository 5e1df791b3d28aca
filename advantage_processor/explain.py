"""Explains step advantages from the recorded parts (`CreditParts`), without recomputing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentevolver.types import StepCredit

# Recorded numbers have 6 digits; a sum of four may be off by this much.
ROUNDING = 5e-6


@dataclass(frozen=True, slots=True)
class ExplainedAdvantage:
    """Parts of an advantage, (outcome + label + later) x scale + rest; None if not recorded."""

    advantage: float
    outcome: float | None = None
    label: float | None = None
    later: float | None = None
    scale: float | None = None  # of later stages
    rest: float | None = None


def explain_credit(credit: StepCredit) -> list[ExplainedAdvantage]:
    if credit.parts is None:
        return [ExplainedAdvantage(advantage) for advantage in credit.advantages]
    parts = zip(credit.parts.outcome, credit.parts.label, credit.parts.later, credit.advantages, strict=True)
    steps = [(sum(own), own, advantage) for *own, advantage in parts]
    factor = _factor([(total, advantage) for total, _, advantage in steps])
    found = []
    for total, (outcome, label, later), advantage in steps:
        left = advantage - (total if factor is None else total * factor)
        rest = left if abs(left) > ROUNDING * max(1.0, abs(factor or 1.0)) else None
        found.append(ExplainedAdvantage(advantage, outcome, label, later, factor, rest))
    return found


def _factor(steps: Sequence[tuple[float, float]]) -> float | None:
    """Return the common factor between sums and advantages; None if it is 1 or there is none."""
    if all(abs(advantage - total) <= ROUNDING for total, advantage in steps):
        return None
    largest = max(steps, key=lambda step: abs(step[0]))
    if abs(largest[0]) <= ROUNDING:
        return None
    factor = largest[1] / largest[0]
    fits = all(abs(advantage - factor * total) <= 2 * ROUNDING * max(1.0, abs(factor)) for total, advantage in steps)
    return factor if fits else None

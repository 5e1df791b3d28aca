"""Factors on the advantages of diagnosed steps (SEAL): by kind, within 0.5..1.5, with the mean 1. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LEAST, MOST = 0.5, 1.5
# A step that the environment refused is known to be the one; how an episode ended says least of the step.
SCALES: Mapping[str, float] = {
    "malformed": 1.5,
    "wrong_argument": 1.4,
    "missing_call": 1.4,
    "refused": 1.3,
    "no_recovery": 1.5,
    "judged": 1.2,
    "out_of_steps": 1.0,
    "wrong_outcome": 1.0,
}


def checked_scales(given: Mapping[str, float]) -> dict[str, float]:
    """Return the factors by kind with `given` on top;
    raises ValueError for an unknown kind or a factor that is out of bounds."""
    for kind, factor in given.items():
        if kind not in SCALES:
            raise ValueError(f"{kind!r} is no kind of diagnosis: write one of {', '.join(SCALES)}")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not LEAST <= factor <= MOST:
            raise ValueError(f"{kind} = {factor!r}: write a number in {LEAST}..{MOST}")
    return {**SCALES, **given}


def bounded(factors: Sequence[float]) -> list[float]:
    """Return factors with the mean 1, each within 0.5..1.5: deviations from the mean, shrunk alike where one of them
    would leave the bounds."""
    if not factors:
        return []
    mean = sum(factors) / len(factors)
    off = [factor - mean for factor in factors]
    largest = max(map(abs, off))
    shrink = min(1.0, (MOST - 1.0) / largest) if largest > 0 else 1.0
    return [1.0 + shrink * one for one in off]

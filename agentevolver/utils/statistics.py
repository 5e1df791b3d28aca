"""Statistics of results: best@k without bias, means with Student's 95 % interval, paired differences.

Standard library alone, since the launcher and the page use it too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import atan, comb, cos, inf, pi, sin, sqrt
from statistics import NormalDist, mean, stdev
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
LEVEL = 0.95
# From so many degrees of freedom on, the expansion below is exact to seven digits.
_MANY = 200


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean of n values, and half the width of its 95 % interval (None for a single value)."""

    mean: float
    half: float | None
    n: int

    def within(self, low: float = -inf, high: float = inf) -> tuple[float, float] | None:
        """Return the ends of the interval, clipped to the range of the value, or None without an interval."""
        return None if self.half is None else (max(low, self.mean - self.half), min(high, self.mean + self.half))

    def to_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "half": self.half, "n": self.n}

    def shown(self, sign: str = "", digits: int = 3) -> str:
        """Return `0.625 ± 0.031`; `sign="+"` always writes the mean's sign."""
        return f"{self.mean:{sign}.{digits}f}" + ("" if self.half is None else f" ± {self.half:.{digits}f}")


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return the mean and its interval, or None without values."""
    return Estimate(mean(values), half_width(values), len(values)) if values else None


def half_width(values: Sequence[float]) -> float | None:
    """Return t(n - 1) s / sqrt(n), half the width of the mean's 95 % interval, or None for fewer than two values."""
    return t_quantile(len(values) - 1) * stdev(values) / sqrt(len(values)) if len(values) > 1 else None


def paired(ours: Mapping[K, float], theirs: Mapping[K, float]) -> Estimate | None:
    """Return the mean difference over the keys (seeds, tasks) that both have, or None if they share none."""
    return estimate([value - theirs[key] for key, value in ours.items() if key in theirs])


@lru_cache(maxsize=1024)
def t_quantile(degrees: int) -> float:
    """Return t with P(|T| <= t) = 0.95 for Student's T; raises ValueError for fewer than one degree of freedom.

    By bisection of the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4; for many degrees by their expansion
    26.7.5.
    """
    if degrees < 1:
        raise ValueError(f"Student's t has at least one degree of freedom, not {degrees}")
    if degrees >= _MANY:
        z = NormalDist().inv_cdf((1 + LEVEL) / 2)
        first = (z**3 + z) / 4
        second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        return z + first / degrees + second / degrees**2 + third / degrees**3
    low, high = 0.0, 16.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_within(middle, degrees) < LEVEL else (low, middle)
    return (low + high) / 2


def _share_within(t: float, degrees: int) -> float:
    angle = atan(t / sqrt(degrees))
    square = cos(angle) ** 2
    term = total = cos(angle) if degrees % 2 else 1.0
    for k in range(3 if degrees % 2 else 2, degrees - 1, 2):
        term *= square * (k - 1) / k
        total += term
    if degrees % 2 == 0:
        return sin(angle) * total
    return 2 / pi * (angle + (sin(angle) * total if degrees > 1 else 0.0))


def best_at_k(scores: Sequence[float], k: int) -> float:
    """Return the expected maximum of `k` of the scores, drawn without replacement; raises ValueError unless 1 <= k <=
    n.

    For sorted scores s_1..s_n this is sum_i s_i C(i-1, k-1) / C(n, k); for scores of 0 and 1 it is the unbiased pass@k
    (Chen et al. 2021, section 2.1).
    """
    n = len(scores)
    if not 1 <= k <= n:
        raise ValueError(f"best@{k} needs between 1 and {n} rollouts")
    ordered = sorted(scores)
    return float(sum(score * comb(i, k - 1) for i, score in enumerate(ordered)) / comb(n, k))


def sizes_of_k(n: int) -> list[int]:
    """Return the k that are reported for n rollouts: 2, 4, 8, ... below n, and n."""
    return [2**i for i in range(1, n.bit_length()) if 2**i < n] + [n]

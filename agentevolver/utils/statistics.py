"""Statistics of results, by the standard library only."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import atan, comb, cos, inf, pi, sin, sqrt
from statistics import NormalDist, mean, stdev
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
LEVEL = 0.95
# Degrees of freedom from which the expansion is exact to seven digits.
_MANY = 200


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean of n values, and half the width of its 95 % interval (None if n is 1)."""

    mean: float
    half: float | None
    n: int

    def within(self, low: float = -inf, high: float = inf) -> tuple[float, float] | None:
        """Return the interval clipped to low..high, or None."""
        return None if self.half is None else (max(low, self.mean - self.half), min(high, self.mean + self.half))

    def to_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "half": self.half, "n": self.n}

    def shown(self, sign: str = "", digits: int = 3) -> str:
        # `0.625 ± 0.031`; sign="+" always writes the mean's sign.
        return f"{self.mean:{sign}.{digits}f}" + ("" if self.half is None else f" ± {self.half:.{digits}f}")


def estimate(values: Sequence[float]) -> Estimate | None:
    return Estimate(mean(values), half_width(values), len(values)) if values else None


def half_width(values: Sequence[float]) -> float | None:
    """Return t(n - 1) s / sqrt(n), or None if n < 2."""
    return t_quantile(len(values) - 1) * stdev(values) / sqrt(len(values)) if len(values) > 1 else None


def paired(ours: Mapping[K, float], theirs: Mapping[K, float]) -> Estimate | None:
    """Return the mean difference over the common keys (seeds, tasks), or None."""
    return estimate([value - theirs[key] for key, value in ours.items() if key in theirs])


@lru_cache(maxsize=1024)
def t_quantile(degrees: int) -> float:
    """Return t with P(|T| <= t) = 0.95 for Student's T; raises ValueError if `degrees` < 1."""
    if degrees < 1:
        raise ValueError(f"Student's t has at least one degree of freedom, not {degrees}")
    # Abramowitz and Stegun 26.7.5. Below: bisection of their finite sums 26.7.3 and 26.7.4.
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
    """Return the expected maximum of `k` scores drawn without replacement; raises ValueError unless 1 <= k <= n.

    For sorted s_1..s_n: sum_i s_i C(i-1, k-1) / C(n, k). For 0/1 scores this is the unbiased pass@k (Chen et al. 2021,
    section 2.1).
    """
    n = len(scores)
    if not 1 <= k <= n:
        raise ValueError(f"best@{k} needs between 1 and {n} rollouts")
    ordered = sorted(scores)
    return float(sum(score * comb(i, k - 1) for i, score in enumerate(ordered)) / comb(n, k))


def sizes_of_k(n: int) -> list[int]:
    # 2, 4, 8, ... below n, and n.
    return [2**i for i in range(1, n.bit_length()) if 2**i < n] + [n]

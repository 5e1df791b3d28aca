"""Statistics of results."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import comb, inf, sqrt
from statistics import mean, stdev
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean of n values, and half the width of its 95 % interval (None if n is 1)."""

    mean: float
    half: float | None
    n: int

    def within(self, low: float = -inf, high: float = inf) -> tuple[float, float] | None:
        """Return the interval clipped to low..high, or None.

        Equal values of a share (low..high is 0..1) have Wilson's interval, since their deviation says nothing.
        """
        if self.half == 0.0 and (low, high) == (0.0, 1.0):
            z = 3.8415 / self.n  # the square of 1.96, over n
            middle, half = self.mean + z / 2, sqrt(z * (self.mean * (1 - self.mean) + z / 4))
            return max(0.0, (middle - half) / (1 + z)), min(1.0, (middle + half) / (1 + z))
        return None if self.half is None else (max(low, self.mean - self.half), min(high, self.mean + self.half))

    def to_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "half": self.half, "n": self.n}

    def shown(self, sign: str = "", digits: int = 3) -> str:
        # `0.625 ± 0.031`; sign="+" always writes the mean's sign.
        return f"{self.mean:{sign}.{digits}f}" + ("" if self.half is None else f" ± {self.half:.{digits}f}")


def estimate(values: Sequence[float]) -> Estimate | None:
    return Estimate(mean(values), half_width(values), len(values)) if values else None


def half_width(values: Sequence[float]) -> float | None:
    """Return t(n - 1) s / sqrt(n), with t of the 95 % interval, or None if n < 2."""
    n = len(values)
    if n < 2:
        return None
    # Imported here: it takes a third of a second, which a command without results need not wait for.
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, (1 + LEVEL) / 2)) * stdev(values) / sqrt(n)


def paired(ours: Mapping[K, float], theirs: Mapping[K, float]) -> Estimate | None:
    """Return the mean difference over the common keys (seeds, tasks), or None."""
    return estimate([value - theirs[key] for key, value in ours.items() if key in theirs])


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

"""Ambiguity-dynamic policy optimisation (ADPO): how far a task's label is trusted, by p, the share of a frozen policy's
episodes that gave it.

    trust(p) = clip01((p - lo) / (hi - lo))        0 at lo, where the label may be wrong; 1 from hi on
    scale(p) = s_min + (1 - s_min) trust(p)        on the advantages, after the group's normalisation
    upper_clip(p) = usual + bonus (1 - trust(p))   so that rare tokens may rise further on the same tasks

p stands in the task's metadata (`adpo_p_hat`) and is read from there alone. Null is for tasks whose answer is known:
scale 1, the usual clip. A task that does not say it is an error. Free of torch.
"""

from __future__ import annotations

import math
from numbers import Real

from agentevolver.types import Task

P_HAT = "adpo_p_hat"
# A task's bucket for the metrics: without p, then by thirds of trust.
BUCKETS = ("none", "low", "middle", "high")


class PHatError(ValueError):
    """A task does not say p as it should; the message says which and what to write."""


def p_hat(task: Task) -> float | None:
    """Return p of a task, None where it says null; raises PHatError where it says none, or no number in 0..1."""
    if P_HAT not in task.metadata:
        raise PHatError(
            f"task {task.task_id}: its metadata have no {P_HAT}: write the share in 0..1 of the episodes that gave its "
            "label, or null where its answer is known"
        )
    value = task.metadata[P_HAT]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 <= float(value) <= 1.0:
        raise PHatError(f"task {task.task_id}: {P_HAT} = {value!r} is no share: write a number in 0..1, or null")
    return float(value)


def trust(p: float, lo: float, hi: float) -> float:
    """Return how far a label is trusted, 0..1."""
    return min(max((p - lo) / (hi - lo), 0.0), 1.0)


def scale(p: float | None, lo: float, hi: float, s_min: float) -> float:
    """Return the factor on a task's advantages, in s_min..1."""
    return 1.0 if p is None else s_min + (1.0 - s_min) * trust(p, lo, hi)


def upper_clip(p: float | None, usual: float, lo: float, hi: float, bonus: float) -> float:
    """Return the upper clip of a task's rows, in usual..usual + bonus."""
    return usual if p is None else usual + bonus * (1.0 - trust(p, lo, hi))


def bucket(p: float | None, lo: float, hi: float) -> int:
    """Return the place of a task's bucket in `BUCKETS`."""
    return 0 if p is None else 1 + min(int(3.0 * trust(p, lo, hi)), 2)


def check_range(lo: float, hi: float) -> None:
    """Refuse bounds of p that are none; raises ValueError."""
    if not (math.isfinite(lo) and math.isfinite(hi) and 0.0 <= lo < hi <= 1.0):
        raise ValueError(f"lo = {lo!r} and hi = {hi!r}: write two shares in 0..1, the least one first")

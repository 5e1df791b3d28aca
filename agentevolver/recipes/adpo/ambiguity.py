"""Ambiguity-dynamic policy optimisation (ADPO). p is the share of a frozen policy's episodes that gave the task's
label.

    trust(p) = clip01((p - lo) / (hi - lo))        0 at lo, where the label may be wrong; 1 from hi on
    scale(p) = s_min + (1 - s_min) trust(p)        factor on the advantages, after the group's normalisation
    upper_clip(p) = usual + bonus (1 - trust(p))   lets rare tokens gain more probability on ambiguous tasks

p is the metadata key `adpo_p_hat` of the task. Null means that the answer is known: scale 1, the usual clip. A task
without the key is an error.
"""

from __future__ import annotations

import math
from numbers import Real

from agentevolver.types import Task

P_HAT = "adpo_p_hat"
# A task's bucket for the metrics: without p, then by thirds of trust.
BUCKETS = ("none", "low", "middle", "high")


class PHatError(ValueError):
    """A task's `adpo_p_hat` is missing or invalid; the message names the task and what to write."""


def p_hat(task: Task) -> float | None:
    """Return p of a task, or None if it is null. Raises PHatError if it is missing or no number in 0..1."""
    if P_HAT not in task.metadata:
        raise PHatError(
            f"task {task.task_id}: the metadata lack {P_HAT}: write the share in 0..1 of the episodes that gave its "
            "label, or null where its answer is known"
        )
    value = task.metadata[P_HAT]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 <= float(value) <= 1.0:
        raise PHatError(f"task {task.task_id}: {P_HAT} = {value!r} is not a share: write a number in 0..1, or null")
    return float(value)


def trust(p: float, lo: float, hi: float) -> float:
    return min(max((p - lo) / (hi - lo), 0.0), 1.0)


def scale(p: float | None, lo: float, hi: float, s_min: float) -> float:
    return 1.0 if p is None else s_min + (1.0 - s_min) * trust(p, lo, hi)


def upper_clip(p: float | None, usual: float, lo: float, hi: float, bonus: float) -> float:
    return usual if p is None else usual + bonus * (1.0 - trust(p, lo, hi))


def bucket(p: float | None, lo: float, hi: float) -> int:
    return 0 if p is None else 1 + min(int(3.0 * trust(p, lo, hi)), 2)


def check_range(lo: float, hi: float) -> None:
    if not (math.isfinite(lo) and math.isfinite(hi) and 0.0 <= lo < hi <= 1.0):
        raise ValueError(f"lo = {lo!r} and hi = {hi!r}: write two shares in 0..1, the smaller one first")

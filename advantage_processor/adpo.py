"""Ambiguity-dynamic policy optimisation (Agent0): smaller advantages and a wider upper clip where a label is doubtful.

p is the share of the frozen executor's episodes that gave a task's label when the task was made. Between `low` and
`high` (the ends of what is kept)

    s(p)      = s_min + (1 - s_min) clip01((p - low) / (high - low))     the scale of the advantages, after the group's
                                                                         normalisation, which would cancel it
    eps_hi(p) = eps + bonus clip01((high - p) / (high - low))            the upper clip

A task that was not labelled so says p = null: scale 1 and the usual clip. A task that does not say is an error, since
no number stands in for a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

P_HAT = "adpo_p_hat"


def p_hat(metadata: Mapping[str, Any]) -> float | None:
    """Return the share p of a task by its metadata, None where they say null.

    Raises ValueError if they do not say, or it is no number in 0..1.
    """
    if P_HAT not in metadata:
        raise ValueError(
            f"a task without metadata[{P_HAT!r}]: write the share of episodes that gave its label, or null for a task "
            "that was not labelled by episodes"
        )
    value = metadata[P_HAT]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating)) or not 0 <= value <= 1:
        raise ValueError(f"metadata[{P_HAT!r}] is {value!r}, expected a share in 0..1 or null")
    return float(value)


def trust(p: float, low: float, high: float) -> float:
    """Return tau(p): 0 up to `low` (ambiguous), 1 from `high` on (consistent), linear between."""
    return min(max((p - low) / (high - low), 0.0), 1.0)


def advantage_scale(p: float | None, low: float = 0.3, high: float = 0.8, s_min: float = 0.6) -> float:
    """Return s(p), from s_min to 1; 1 for a task without p."""
    return 1.0 if p is None else s_min + (1.0 - s_min) * trust(p, low, high)


def upper_clip(p: float | None, eps: float, low: float = 0.3, high: float = 0.8, bonus: float = 0.1) -> float:
    """Return eps_hi(p), from eps to eps + bonus; eps for a task without p."""
    return eps if p is None else eps + bonus * min(max((high - p) / (high - low), 0.0), 1.0)

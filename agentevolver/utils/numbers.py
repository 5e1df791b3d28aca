"""Numbers from Python code, which may be scalars of NumPy or torch."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

# A sum of float32 weights misses 1 by this much.
_ROUNDING = 1e-6


def plain(value: Any) -> Any:
    """Return the Python value of an array or tensor with one element, and any other value as it is."""
    with suppress(TypeError, ValueError, RuntimeError):  # it has more than one element
        return value.item() if callable(getattr(value, "item", None)) else value
    return value


def number(value: Any) -> float | int | None:
    """Return a finite number as an int or a float, or None if the value is not one."""
    value = plain(value)
    with suppress(ArithmeticError, TypeError, ValueError, RuntimeError):
        if hasattr(value, "__float__") and math.isfinite(found := float(value)):
            return int(value) if isinstance(value, int) else found
    return None


def score(value: Any) -> float | None:
    """Return a number in 0..1 as a float, or None if the value is not one."""
    if (found := number(value)) is None or abs(found - 0.5) > 0.5 + _ROUNDING:
        return None
    return min(max(float(found), 0.0), 1.0)

"""Numbers from Python code, which may be scalars of NumPy or torch."""

from __future__ import annotations

import math
from typing import Any

# A sum of float32 weights misses 1 by this much.
_ROUNDING = 1e-6


def plain(value: Any) -> Any:
    """Return the Python value of an array or tensor with one element, and any other value as it is."""
    try:
        return value.item() if callable(getattr(value, "item", None)) else value
    except (TypeError, ValueError, RuntimeError):  # more than one element
        return value


def number(value: Any) -> float | int | None:
    """Return a finite number as an int or a float, or None if the value is not one."""
    value = plain(value)
    if not hasattr(value, "__float__"):
        return None
    try:
        found = float(value)
    except (ArithmeticError, TypeError, ValueError, RuntimeError):
        return None
    return (int(value) if isinstance(value, int) else found) if math.isfinite(found) else None


def score(value: Any) -> float | None:
    """Return a number in 0..1 as a float, or None if the value is not one."""
    found = number(value)
    if found is None or not -_ROUNDING <= found <= 1 + _ROUNDING:
        return None
    return min(max(float(found), 0.0), 1.0)


def for_json(value: Any) -> Any:
    """Return an array or tensor as lists, for orjson's `default`. Raises TypeError for other types."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")

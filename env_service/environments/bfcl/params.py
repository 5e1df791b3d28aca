"""Reading request parameters: a name that is not known is refused with the nearest known one, a wrong type with what is
wanted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


def check_names(params: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raise ValueError if `params` holds a name that `where` does not know."""
    names = list(known)
    for name in params:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(names)}"
            raise ValueError(f"unknown parameter `{name}` for {where} of the bfcl environment; {hint}")


def read_flag(params: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return a true/false parameter; raise ValueError for anything else."""
    value = params.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"parameter `{name}` is {value!r}; it must be true or false")
    return value


def read_count(params: Mapping[str, Any], name: str, default: int, largest: int) -> int:
    """Return a whole-number parameter in 1..`largest`; raise ValueError for anything else."""
    value = params.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise ValueError(f"parameter `{name}` is {value!r}; it must be a whole number from 1 to {largest}")
    return value

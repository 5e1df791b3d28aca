"""Parameters over an environment's settings: unknown names and wrong types are refused."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agentevolver.utils.names import did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    S = TypeVar("S", bound=DataclassInstance)

_PATH = re.compile(r"file:|~[\w.-]*(?:/|$)|(?:[^/]*/)*\.\.(?:/|$)|/", re.IGNORECASE)


def paths_in(value: Any) -> Iterator[str]:
    """Yield the texts in parameters that name a file: from `/`, `~` or `..`, or existing."""
    if isinstance(value, str):
        if _PATH.match(value) or ("/" in value and os.path.lexists(value)):
            yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from paths_in(item)


def inside(path: str | Path, folders: Iterable[str | Path]) -> Path:
    """Return a path with its links followed; raises ValueError if it is in none of the folders."""
    real, *roots = (Path(os.path.realpath(os.path.expanduser(one))) for one in (path, *folders))
    if not any(real.is_relative_to(root) for root in roots):
        raise ValueError(f"{str(path)[:200]!r} is outside of {[*map(str, roots)]}")
    return real


def laid_over(settings: S, params: Mapping[str, Any] | None, kinds: Mapping[str, type] | None = None) -> S:
    """Return a copy of a dataclass with `params` on top; raises ValueError for an unknown name or a wrong type.

    A parameter must have the type of the field's value; `kinds` gives the types of fields whose value is None.
    """
    known = {f.name: type(getattr(settings, f.name)) for f in fields(settings)} | dict(kinds or {})
    for name, value in (params or {}).items():
        if name not in known:
            raise ValueError(f"unknown parameter {name!r}; {did_you_mean(name, known, f'known are {sorted(known)}')}")
        if type(value) is not known[name]:
            raise ValueError(f"parameter {name}={value!r} must be of type {known[name].__name__}")
    return replace(settings, **(params or {}))


def read_flags(params: Mapping[str, Any] | None, flags: Mapping[str, bool]) -> dict[str, bool]:
    """Return `flags` with `params` on top; raises ValueError for an unknown name or a value that is not a bool."""
    for name, value in (params or {}).items():
        if name not in flags:
            hint = did_you_mean(name, flags, f"known: {', '.join(flags)}")
            raise ValueError(f"unknown parameter {name!r}; {hint}")
        if not isinstance(value, bool):
            raise ValueError(f"parameter {name}={value!r} must be true or false")
    return {**flags, **(params or {})}


def read_values(texts: Iterable[str]) -> dict[str, Any]:
    """Return parameters of texts `KEY=VALUE`, whose values are JSON, or else texts; raises ValueError."""
    found: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise ValueError(f"{text!r} is not of the form KEY=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found

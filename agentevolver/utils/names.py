"""Names that a person writes: suggestions for a misspelt one, and the class at `package.module:Class`."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

_SPEC = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "", *, before: str = "", quote: str = "'") -> str:
    """Return `did you mean 'x'?` for the nearest of `names`, after `before`, or `otherwise` if none is near."""
    near = difflib.get_close_matches(name, list(names), 1)
    return f"{before}did you mean {quote}{near[0]}{quote}?" if near else otherwise


def one_of(value: str, names: Sequence[str]) -> str:
    """Return a name that is in `names`; raises ValueError with a suggestion."""
    if value not in names:
        raise ValueError(_instead(value, names))
    return value


def name_or_spec(value: str, names: Sequence[str]) -> str:
    """Return a name that is in `names` or has the form `package.module:Class`; raises ValueError with a suggestion."""
    if value not in names and re.fullmatch(_SPEC, value) is None:
        raise ValueError(_instead(value, names, ", or package.module:Class"))
    return value


def _instead(value: str, names: Sequence[str], or_else: str = "") -> str:
    listed = f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"
    return f"write {listed}{or_else}" + did_you_mean(value, names, before="; ")


def load_named(name: str, known: Mapping[str, T | str]) -> T:
    """Return what a name stands for: one of `known`, or what stands at `package.module:Name`.

    A text among the values of `known` is itself a `package.module:Name`.

    Raises:
        ValueError: it is neither; the message says what else to write.
    """
    entry = known.get(name, name)
    if not isinstance(entry, str):
        return entry
    listed = f"one of {', '.join(sorted(known))}, or " if known else ""
    if ":" not in entry:
        raise ValueError(f"{name!r} is not known: write {listed}package.module:Name")
    try:
        found: T = imported(entry)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name!r} cannot be imported: {error}; write {listed}package.module:Name") from error
    return found


def load_class(spec: str, base: Callable[..., T], names: Sequence[str]) -> type[T]:
    """Return the class at `package.module:Class`.

    Raises ValueError if it cannot be imported or is no subclass of `base`; the message suggests `names`.
    """
    try:
        found: Any = imported(spec)
    except (ImportError, AttributeError, ValueError) as error:
        others = f"one of {', '.join(names)}, or " if names else ""
        raise ValueError(f"{error}; write {others}package.module:Class") from error
    assert isinstance(base, type)  # typed as a callable, so that an abstract class may be given
    fits = isinstance(found, type) and issubclass(found, base)
    if not fits:
        raise ValueError(f"{found!r} is not a subclass of {base.__module__}.{base.__qualname__}")
    return found  # type: ignore[no-any-return]


def imported(spec: str) -> Any:
    """Return the object at `package.module:Name`; raises what the import raises, and ValueError without a module."""
    module, _, attribute = spec.partition(":")
    return getattr(importlib.import_module(module), attribute)

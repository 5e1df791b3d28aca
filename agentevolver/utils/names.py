"""Names that a user writes: suggestions for misspelt ones, objects at `package.module:Name`, and derived names."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from agentevolver.utils import seeds

T = TypeVar("T")
# As short and as simple as file systems and the service's instances want it, with room for what is put behind it.
_SIMPLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

_SPEC = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"


def system_name(text: str) -> str:
    """Return a name for files and instances that is derived from any text: a simple text itself, else its digest."""
    return text if _SIMPLE.fullmatch(text) else seeds.digest(text).hex()


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "", *, before: str = "", quote: str = "'") -> str:
    """Return `did you mean 'x'?` with the nearest name, or `otherwise` if none is near."""
    near = difflib.get_close_matches(name, list(names), 1)
    return f"{before}did you mean {quote}{near[0]}{quote}?" if near else otherwise


def one_of(value: str, names: Sequence[str]) -> str:
    """Return `value`; raises ValueError with a suggestion if it is not in `names`."""
    if value not in names:
        raise ValueError(_instead(value, names))
    return value


def name_or_spec(value: str, names: Sequence[str]) -> str:
    """Return `value`; raises ValueError if it is neither in `names` nor of the form `package.module:Class`."""
    if value not in names and re.fullmatch(_SPEC, value) is None:
        raise ValueError(_instead(value, names, ", or package.module:Class"))
    return value


def _instead(value: str, names: Sequence[str], or_else: str = "") -> str:
    listed = f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"
    return f"write {listed}{or_else}" + did_you_mean(value, names, before="; ")


def load_named(name: str, known: Mapping[str, T | str]) -> T:
    """Return `known[name]`, or the object at `package.module:Name`. A text in `known` is a `package.module:Name` too.
    Raises ValueError."""
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
    """Return the class at `package.module:Class`; raises ValueError if the import fails or the class is not a subclass
    of `base`."""
    try:
        found: Any = imported(spec)
    except (ImportError, AttributeError, ValueError) as error:
        others = f"one of {', '.join(names)}, or " if names else ""
        raise ValueError(f"{error}; write {others}package.module:Class") from error
    assert isinstance(base, type)  # typed as a callable, because mypy refuses an abstract class as `type[T]`
    fits = isinstance(found, type) and issubclass(found, base)
    if not fits:
        raise ValueError(f"{found!r} is not a subclass of {base.__module__}.{base.__qualname__}")
    return found  # type: ignore[no-any-return]


def imported(spec: str) -> Any:
    module, _, attribute = spec.partition(":")
    return getattr(importlib.import_module(module), attribute)

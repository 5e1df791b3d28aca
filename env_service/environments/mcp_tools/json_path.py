"""The part of JSONPath that a check needs: `$`, `.name`, `['name']`, `[3]`, `[-1]`. It finds one value, or raises
PathError."""

from __future__ import annotations

import re
from typing import Any

_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\['([^']*)'\]|\[\"([^\"]*)\"\]|\[(-?\d{1,9})\]")


class PathError(LookupError):
    """The value has no such place."""


def parse_path(path: str) -> list[str | int]:
    """Return the steps of a path; raises ValueError that names the spot that cannot be read."""
    if not path.startswith("$"):
        raise ValueError(f"JSON path {path!r} must begin with $")
    steps: list[str | int] = []
    position = 1
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise ValueError(
                f"JSON path {path!r} cannot be read from {path[position:]!r} on; use .name, ['name'] or [3]"
            )
        name = next((group for group in match.groups()[:3] if group is not None), None)
        steps.append(name if name is not None else int(match[4]))
        position = match.end()
    return steps


def find(value: Any, path: str) -> Any:
    """Return what lies at `path`; raises PathError if nothing does."""
    for step in parse_path(path):
        if isinstance(step, str):
            known = isinstance(value, dict) and step in value
        else:
            known = isinstance(value, list) and -len(value) <= step < len(value)
        if not known:
            raise PathError(f"nothing at {step!r} of {path}")
        value = value[step]
    return value

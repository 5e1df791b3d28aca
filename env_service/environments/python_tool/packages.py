"""Which installed packages the agent's code may import: an allow-list by import name, resolved to host paths without
importing.

A package that the server's configuration names but that is not installed is an error; the defaults are shown where they
exist.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from pathlib import Path

DEFAULT_PACKAGES = ("mpmath", "numpy", "sympy")
GRADER_PACKAGES = ("antlr4", "latex2sympy2_extended", "math_verify", "mpmath", "sympy")


def is_installed(name: str) -> bool:
    """Whether a top-level package or module of this name can be found."""
    return name.isidentifier() and importlib.util.find_spec(name) is not None


def paths_of(names: Sequence[str]) -> list[str]:
    """Return the host paths (folder or file, and the folder of bundled libraries) of top-level packages.

    Raises ValueError for a name that is not installed or is no package of its own (a built-in, a namespace package).
    """
    found: list[str] = []
    for name in names:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is None or not spec.has_location or spec.origin is None:
            raise ValueError(
                f"package {name!r} cannot be shown to the interpreter: no package or module of that name is installed"
            )
        origin = Path(spec.origin)
        place = origin.parent if spec.submodule_search_locations else origin
        libraries = place.parent / f"{name}.libs"
        found += [str(path.resolve()) for path in (place, libraries) if path.exists()]
    return found


def metadata_of(distribution: str) -> str:
    """Return the host path of an installed distribution's `.dist-info` folder (some packages ask for versions at run
    time)."""
    installed = importlib.metadata.distribution(distribution)
    folder = next(file.parts[0] for file in installed.files or () if file.parts[0].endswith(".dist-info"))
    return str(Path(str(installed.locate_file(folder))).resolve())

"""Operator settings of the python tool, from environment variables `ENV_PYTHON_*` only.

An unknown variable of that prefix, or a bad value, raises SettingsError. Packages that the agent's code may import are
an allow-list, resolved to host paths without importing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from agentevolver.utils.names import did_you_mean
from env_service.environments.python_tool.sandbox.host import SandboxLimits

DEFAULT_PACKAGES = ("mpmath", "numpy", "sympy")
GRADER_PACKAGES = ("antlr4", "latex2sympy2_extended", "math_verify", "mpmath", "sympy")


def is_installed(name: str) -> bool:
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
    """Return the `.dist-info` folder of a distribution, which some packages read at run time."""
    installed = importlib.metadata.distribution(distribution)
    folder = next(file.parts[0] for file in installed.files or () if file.parts[0].endswith(".dist-info"))
    return str(Path(str(installed.locate_file(folder))).resolve())


PREFIX = "ENV_PYTHON_"
LONGEST_WALL_S = 45.0
"""Seconds that one piece of code may be allowed at most, below the time-out of a call on the environment."""


class SettingsError(RuntimeError):
    """The operator's configuration is wrong."""


@dataclass(frozen=True)
class PythonSettings:
    """- `limits`: bounds of the interpreter, each from `ENV_PYTHON_<NAME>`, `ENV_PYTHON_WALL_S` for instance.
    - `packages`: import names that the code may use (`ENV_PYTHON_PACKAGES`, comma-separated; empty for none).
    - `package_paths`: where they are on this host.
    - `task_files`: further task files (`ENV_PYTHON_TASKS`, separated like PATH).
    """

    limits: SandboxLimits
    packages: tuple[str, ...]
    package_paths: tuple[str, ...]
    task_files: tuple[str, ...]


def _known_names() -> list[str]:
    return [PREFIX + name for name in ("PACKAGES", "TASKS", *(field.name.upper() for field in fields(SandboxLimits)))]


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    known = _known_names()
    for name in environ:
        if name.startswith(PREFIX) and name not in known:
            hint = did_you_mean(name, known, f"known: {', '.join(known)}", quote="")
            raise SettingsError(f"unknown variable {name}; {hint}")


def _limits(environ: Mapping[str, str]) -> SandboxLimits:
    values: dict[str, float | int] = {}
    for field in fields(SandboxLimits):
        text = environ.get(PREFIX + field.name.upper())
        if text is None:
            continue
        try:
            values[field.name] = float(text) if isinstance(field.default, float) else int(text)
        except ValueError as error:
            raise SettingsError(f"{PREFIX}{field.name.upper()}={text!r} is not a number") from error
    try:
        limits = SandboxLimits(**values)  # type: ignore[arg-type]
    except ValueError as error:
        raise SettingsError(f"{PREFIX}*: {error}") from error
    if limits.wall_s > LONGEST_WALL_S:
        raise SettingsError(
            f"{PREFIX}WALL_S={limits.wall_s:g} is more than the {LONGEST_WALL_S:g} s that a call leaves room for"
        )
    return limits


def read_settings(environ: Mapping[str, str] | None = None) -> PythonSettings:
    """Read the settings from `environ` (default: this process's); raises SettingsError."""
    environ = os.environ if environ is None else environ
    _refuse_unknown(environ)
    listed = environ.get(PREFIX + "PACKAGES")
    if listed is None:
        packages = tuple(name for name in DEFAULT_PACKAGES if is_installed(name))
    else:
        packages = tuple(name.strip() for name in listed.split(",") if name.strip())
    try:
        paths = tuple(paths_of(packages))
    except ValueError as error:
        raise SettingsError(f"{PREFIX}PACKAGES: {error}") from error
    files = tuple(path for path in environ.get(PREFIX + "TASKS", "").split(os.pathsep) if path)
    return PythonSettings(_limits(environ), packages, paths, files)

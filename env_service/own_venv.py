"""Packages of one environment in a venv of its own, imported from there by the process that hosts it.

For pure packages whose requirements would change the training stack: the venv's site-packages stand behind everything
else on the path, so that what the service has itself is never replaced.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[1]


def use_site(name: str, variable: str, package: str) -> None:
    """Put the site-packages of `.venvs/NAME` of the repository, or what a variable of the service names, at the end of
    the path, if they hold the package."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = os.environ.get(variable) or str(_REPOSITORY / ".venvs" / name / "lib" / version / "site-packages")
    if site not in sys.path and (Path(site) / package / "__init__.py").is_file():
        sys.path.append(site)
        importlib.invalidate_caches()


def is_importable(package: str) -> bool:
    """Whether a package can be found; a folder that merely has its name is none."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None

"""Packages of one environment in a venv of its own, imported by the process that hosts it.

For pure packages whose requirements would change the training stack.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[1]


def use_site(name: str, variable: str, package: str) -> None:
    """Append the site-packages of `.venvs/NAME`, or those that `variable` names, to the path if they hold the
    package."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = os.environ.get(variable) or str(_REPOSITORY / ".venvs" / name / "lib" / version / "site-packages")
    if site not in sys.path and (Path(site) / package / "__init__.py").is_file():
        # At the end: the service's own packages are never replaced.
        sys.path.append(site)
        importlib.invalidate_caches()


def is_importable(package: str) -> bool:
    # A folder that only has the name is found too, but without an origin.
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None

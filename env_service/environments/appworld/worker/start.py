"""Start of the fork server by the Python of AppWorld's venv: `python -I start.py --socket PATH --ready-fd N --grace S`.

The folder is loaded as the package `appworld_worker` without touching `sys.path`, so that `import appworld` finds the
pip package.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

PACKAGE = "appworld_worker"
SANDBOX = "python_sandbox"


def load_packages() -> None:
    """Make this folder importable as `appworld_worker`, and the sandbox as `python_sandbox`."""
    folder = Path(__file__).resolve().parent
    _load(PACKAGE, folder)
    _load(SANDBOX, folder.parents[1] / "python_tool" / "sandbox")


def _load(name: str, folder: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is not a package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    load_packages()
    sys.exit(importlib.import_module(f"{PACKAGE}.forkserver").main(sys.argv[1:]))

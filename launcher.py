#!/usr/bin/env python3
"""Start a run: `python launcher.py --conf examples/basic.yaml [key=value ...]`. See docs/launcher.md."""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def use_own_environment() -> None:
    """Restart with the checkout's .venv if this Python lacks the dependencies."""
    if importlib.util.find_spec("verl") is not None and importlib.util.find_spec("dotenv") is not None:
        return
    python = ROOT / ".venv" / "bin" / "python"
    if not python.exists() or Path(sys.prefix).resolve() == python.parent.parent.resolve():
        sys.exit(f"launcher: error: {sys.executable} lacks the dependencies; run `bash {ROOT / 'install.sh'}` first")
    os.execv(python, [str(python), *sys.argv])


if __name__ == "__main__":
    use_own_environment()
    sys.path.insert(0, str(ROOT))
    from agentevolver.launcher.cli import main

    sys.exit(main(sys.argv[1:], ROOT))

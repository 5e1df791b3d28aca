"""The tiny AppWorld that the tests use: built once into a cache outside the repository, found again by a hash of its
sources."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from env_service.environments.appworld import installation as installation_module

TINY = Path(__file__).parent / "appworld_tiny"
BUILD_TIMEOUT_S = 240


def interpreter() -> Path:
    """Return the venv's interpreter; skips the test without one."""
    default = Path(installation_module.__file__).resolve().parents[3] / ".venvs" / "appworld" / "bin" / "python"
    python = Path(os.environ.get("APPWORLD_PYTHON") or default)
    if not os.access(python, os.X_OK):
        pytest.skip(f"needs the AppWorld venv: {installation_module.SETUP}")
    return python


def build(python: Path) -> Path:
    """Return the root of the tiny world, built if this version of it is not in the cache yet."""
    cache = Path(os.environ.get("APPWORLD_TINY_CACHE") or Path.home() / ".cache" / "agentevolver" / "appworld-tiny")
    lock_file = Path(installation_module.__file__).parent / "requirements.lock"
    digest = hashlib.sha256(
        lock_file.read_bytes() + b"".join(source.read_bytes() for source in sorted(TINY.glob("*.py")))
    )
    root = cache / digest.hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            unfinished = Path(tempfile.mkdtemp(dir=cache))
            unfinished.chmod(0o755)  # under root an agent's code runs as another user
            environment = {
                "PATH": os.environ["PATH"],
                "HOME": str(unfinished),
                "APPWORLD_ROOT": str(unfinished),
                "APPWORLD_CACHE": str(unfinished),
                "PYTHON_DOTENV_DISABLED": "1",
                "OMP_NUM_THREADS": "1",
            }
            command = [str(python), "-I", str(TINY / "build.py")]
            done = subprocess.run(
                command,
                env=environment,
                cwd=unfinished,
                capture_output=True,
                text=True,
                timeout=BUILD_TIMEOUT_S,
                umask=0o022,
            )
            if done.returncode:
                shutil.rmtree(unfinished)
                pytest.fail(f"the tiny world could not be built:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
            unfinished.rename(root)
    return root

"""AppWorld on the tiny world of `appworld_tiny`, built once into a cache outside the repository.

Needs the venv that `env_service/environments/appworld/setup.sh` makes; without it the tests that use AppWorld skip and
say so. Nothing of AppWorld's protected files is in the repository: what the builder derives from them goes to
`$APPWORLD_TINY_CACHE` (default `~/.cache/agentevolver/appworld-tiny`).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from env_service.environments.appworld.tests.tiny_world import build, interpreter

sys.path.append(str(Path(__file__).parent))

from env_service.environments.appworld.env import AppworldEnv
from env_service.environments.appworld.installation import AppworldNotInstalled, Installation
from env_service.environments.appworld.workers import ForkServerClient
from env_service.environments.python_tool import sandbox

# The worker finds the sandbox under the name that its `start.py` loads it by.
sys.modules.setdefault("python_sandbox", sandbox)
OUTSIDE = {name: os.environ.get(name) for name in ("APPWORLD_PYTHON", "APPWORLD_ROOT")}


@pytest.fixture(scope="session")
def short_tmp() -> Iterator[Path]:
    """A temporary folder with a path short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="aw", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def tiny(short_tmp: Path) -> Iterator[Installation]:
    """The tiny world as the installation of this session, with a fork server of its own, which is gone afterwards."""
    python = interpreter()
    root = build(python)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("APPWORLD_PYTHON", str(python))
        patch.setenv("APPWORLD_ROOT", str(root))
        patch.setattr(tempfile, "tempdir", str(short_tmp))
        installation = Installation.find()
        yield installation
        ForkServerClient.of(installation).stop()


@pytest.fixture
def open_env(tiny: Installation) -> Iterator[Callable[..., AppworldEnv]]:
    """Opens environments and closes them at the end."""
    opened: list[AppworldEnv] = []

    def open_one(task_id: str, **params: object) -> AppworldEnv:
        env = AppworldEnv(task_id, f"instance-{len(opened)}", params)
        opened.append(env)
        env.get_init_state()
        return env

    yield open_one
    for env in opened:
        env.close()


@pytest.fixture
def real_installation(monkeypatch: pytest.MonkeyPatch) -> Installation:
    """AppWorld with its own data, where the person who runs the tests has it; skips without it."""
    for name, value in OUTSIDE.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    try:
        found = Installation.find()
    except AppworldNotInstalled as missing:
        pytest.skip(f"needs AppWorld's own data, which its makers host: {missing}")
    if len(list((found.root / "data" / "tasks").iterdir())) < 700:
        pytest.skip(f"needs AppWorld's own data; {found.root} holds another world")
    return found

"""Which Python the setup takes, by stand-ins that say their version and refuse to make a venv."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1]


def stand_in(path: Path, version: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n[ "$1" = -m ] && {{ echo "$0 $*"; exit 7; }}\necho {version}\n')
    path.chmod(0o755)


def setup(repository: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    script = repository / "env_service" / "environments" / "appworld" / "setup.sh"
    script.parent.mkdir(parents=True, exist_ok=True)
    for name in ("setup.sh", "requirements.lock"):
        shutil.copy(FOLDER / name, script.parent / name)
    environ = {
        "PATH": os.pathsep.join((str(repository / "bin"), "/usr/bin", "/bin")),
        "HOME": str(repository),
        **variables,
    }
    return subprocess.run(["bash", str(script)], env=environ, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        ({".venv/bin/python": "3.12", "bin/python3.11": "3.11"}, ".venv/bin/python"),
        ({"bin/python3.11": "3.11", "bin/python3.12": "3.12"}, "bin/python3.11"),
        ({".venv/bin/python": "3.13", "bin/python3.11": "3.14", "bin/python3.12": "3.12"}, "bin/python3.12"),
    ],
)
def test_a_python_that_the_lock_is_for_is_found(there: dict[str, str], taken: str, tmp_path: Path) -> None:
    for name, version in there.items():
        stand_in(tmp_path / name, version)
    done = setup(tmp_path)
    assert done.returncode == 7 and f"{tmp_path / taken} -m venv" in done.stdout


def test_another_python_is_refused_by_name(tmp_path: Path) -> None:
    stand_in(tmp_path / "python3.13", "3.13")
    done = setup(tmp_path, PYTHON=str(tmp_path / "python3.13"))
    assert (
        done.returncode == 1
        and "python3.13 is 3.13; requirements.lock is for Python 3.11 and 3.12 alone" in done.stderr
    )

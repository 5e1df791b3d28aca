"""`python -m env_service check NAME` passes for every environment that comes with the service."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_world import build, interpreter

from env_service.environments.catalogue.build import build as build_catalogue
from env_service.environments.catalogue.tools import FOLDER_VARIABLE
from env_service.environments.reasoning_gym.library import Library, NotInstalled
from env_service.environments.scienceworld import simulator as scienceworld
from env_service.environments.tau2 import package as tau2
from env_service.environments.textarena import package as textarena
from env_service.environments.textworld import games as textworld
from env_service.registry import known_environments

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
NEEDS = {"bfcl": "bfcl_eval", "gymnasium": "gymnasium", "mcp": "mcp", "python": "math_verify"}


@pytest.mark.parametrize("name", sorted(known_environments()))
def test_check_passes(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"see the README of {name}")
    own = (("scienceworld", scienceworld), ("tau2", tau2), ("textarena", textarena), ("textworld", textworld))
    for known, package in own:
        if name == known and not package.installed():
            pytest.skip(f"its package is not installed; run `{package.SETUP}`")
    if name == "reasoning_gym":
        try:
            Library.shared()
        except NotInstalled as missing:
            pytest.skip(str(missing))
    environ = {variable: text for variable, text in os.environ.items() if not variable.startswith("ENV_")}
    if name == "catalogue":
        build_catalogue(tmp_path, ["pocket", "bfcl"], "hashing")
        environ[FOLDER_VARIABLE] = str(tmp_path)
    if name == "appworld":
        python = interpreter()
        environ |= {"APPWORLD_PYTHON": str(python), "APPWORLD_ROOT": str(build(python))}
    command = [sys.executable, "-m", "env_service", "check", name]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(f"{name}: keeps the contract\n") and "BROKEN" not in done.stdout

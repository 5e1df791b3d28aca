"""What the tests of every environment check: the contract, the profile and the names of its splits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from env_service.contract import list_tasks
from env_service.registry import known_environments, load
from task_manager.actions import format_of
from task_manager.profile import shipped_profile

ROOT = Path(__file__).parents[2]


def keeps_the_contract(name: str, **variables: str) -> None:
    """Run `python -m env_service check NAME`, and load the profile and the action format."""
    assert load(known_environments()[name]).isolation in ("shared", "isolated")
    assert shipped_profile(name).entities and format_of(name).env_type == name
    environ = {variable: text for variable, text in os.environ.items() if not variable.startswith("ENV_")}
    command = [sys.executable, "-m", "env_service", "check", name]
    done = subprocess.run(
        command, cwd=ROOT, env=environ | variables, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(f"{name}: keeps the contract\n") and "BROKEN" not in done.stdout


def understands_the_usual_splits(name: str) -> None:
    """dev, val and validation are one split, apart from test; another name is refused."""
    found = load(known_environments()[name])
    dev, val, test = (list_tasks(found, split, None) for split in ("dev", "val", "test"))
    assert dev == val == list_tasks(found, "validation", None) and dev and not set(dev) & set(test)
    with pytest.raises(ValueError, match=r"'tset'.*train.*(dev|val).*test"):
        list_tasks(found, "tset", None)

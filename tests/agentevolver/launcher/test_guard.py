"""What a guard is started with, and how soon again. What it does is looked at in `test_run.py`."""

import os
from itertools import accumulate
from pathlib import Path

import pytest

from agentevolver.launcher import guard

ROOT = Path(__file__).parents[3]


def test_a_guard_has_what_its_python_needs_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LD_LIBRARY_PATH", "PYTHONHOME", "SOME_API_KEY", "PYTHONPATH"):
        monkeypatch.setenv(name, "/some/where")
    given = guard.environment()
    assert given["LD_LIBRARY_PATH"] == given["PYTHONHOME"] == "/some/where" and "SOME_API_KEY" not in given
    assert given["PYTHONPATH"] == f"{ROOT}{os.pathsep}/some/where"
    monkeypatch.delenv("PYTHONPATH")
    assert guard.environment()["PYTHONPATH"] == str(ROOT)


def test_a_guard_that_keeps_dying_is_started_less_and_less_often() -> None:
    lives = [0.1] * 8 + [61.0, 59.0]
    pauses = list(accumulate(lives, guard.pause_after, initial=0.0))[1:]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 1, 2]

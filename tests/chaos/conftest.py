"""Runs that are killed and resumed, of which nothing stays whatever happens."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.runs import ROOT, Launched, launch


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Launched]]:
    """Start, or resume, the run of a test with some overrides."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    runs: list[Launched] = []

    def start(*overrides: str) -> Launched:
        runs.append(launch(tmp_path, "chaos", *overrides))
        return runs[-1]

    yield start
    for run in runs:
        run.end()

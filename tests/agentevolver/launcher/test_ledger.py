"""The files of a run are all there or none, and what cannot be written is one line."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agentevolver.launcher import run
from agentevolver.launcher.plan import Plan
from agentevolver.launcher.records import RunRegistry
from agentevolver.utils.errors import LaunchError


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(
        run_id="r1",
        device="cpu",
        experiment_dir=tmp_path / "experiment",
        config={},
        services=(),
        job=None,
        temp_dir=tmp_path / "ae-r1",
        token=tmp_path / "run" / "r1.token",
        dashboard=None,
        reused=(),
    )


def refused(plan: Plan, registry: RunRegistry) -> str:
    with pytest.raises(LaunchError) as caught:
        run._Ledger(plan, registry)
    message = str(caught.value)
    assert "\n" not in message and message.startswith("cannot write the files of run r1: ")
    return message


def test_what_was_written_is_removed_when_something_cannot_be(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = RunRegistry(tmp_path / "run")

    def full(*_: object) -> None:
        (registry.secrets_path("r1")).mkdir()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run, "write_secrets", full)
    monkeypatch.setenv("SOME_API_KEY", "k")
    assert "No space left on device" in refused(replace(plan, secrets=("SOME_API_KEY",)), registry)
    assert list(registry.folder.iterdir()) == [] and not (tmp_path / "ae-r1").exists()

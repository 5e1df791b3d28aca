"""Rounds with fakes: what each stage makes, and that a kill anywhere changes nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.agentevolver.coevolve.fakes import configuration, drive


def test_two_rounds_make_pools_checkpoints_and_evaluations(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    lines: list[str] = []
    manifest = drive(config, show=lines.append)
    assert manifest.content["state"] == "done"
    assert [line.split("  ")[0].strip() for line in lines[:3]] == ["base", "round 1", "round 2"]
    assert (config_folder(config) / "best").is_dir()


def config_folder(config: dict[str, Any]) -> Path:
    """Return the experiment's folder."""
    return Path(config["experiment"]["dir"])

"""The tables of runs of proposer and executor."""

import json
from pathlib import Path

import pytest

from benchmarks.agent0_tables import main


def part(success: float, kept: int | None = None) -> dict[str, object]:
    stages: dict[str, object] = {"evaluate": {"metrics": {"dev": {"success": {"mean": success, "se": 0.02}}}}}
    if kept is not None:
        stages["label"] = {"counts": {"kept": kept, "episodes": 4800}, "metrics": {"label_right": 1.0}}
        stages["propose"] = {"counts": {"episodes": 1440}}
    return {"round": 0, "stages": stages}


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    for name, rounds in {
        "executed-1": [part(0.5), part(0.7, 90)],
        "executed-2": [part(0.5), part(0.9, 110)],
        "frozen-1": [part(0.5), part(0.6, 90)],
        "frozen-2": [part(0.5), part(0.7, 90)],
        "vote-1": [part(0.5), part(0.4)],
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "coevolve.json").write_text(json.dumps({"rounds": rounds}))
    main(["--experiments", str(tmp_path)])
    return capsys.readouterr().out


def test_a_row_a_condition_and_a_column_a_round(printed: str) -> None:
    # Student's t with one degree of freedom: 12.706; times 0.1414 / sqrt(2) it is 1.271.
    assert "| executed | 2 | 0.500 ± 0.000 | 0.800 ± 1.271 |" in printed
    assert "| executed | 2 |  | 100.0 ± 127.1 |" in printed and "| executed | 2 |  | 6,240.0 ± 0.0 |" in printed


def test_differences_are_taken_seed_by_seed(printed: str) -> None:
    assert "| executed - frozen | 2 | +0.000 ± 0.000 | +0.150 ± 0.635 |" in printed
    assert "| executed - vote | 1 | +0.000 (± 0.055) | +0.300 (± 0.055) |" in printed
    assert "narrow" not in printed, "what was not run has no row"

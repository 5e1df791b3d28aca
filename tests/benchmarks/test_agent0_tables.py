"""The tables of runs of proposer and executor."""

import json
from pathlib import Path

from benchmarks.agent0_tables import main


def part(success: float, kept: int | None = None) -> dict[str, object]:
    stages: dict[str, object] = {"evaluate": {"metrics": {"dev": {"success": {"mean": success}}}}}
    if kept is not None:
        stages["label"] = {"counts": {"kept": kept, "episodes": 4800}, "metrics": {"label_right": 1.0}}
        stages["propose"] = {"counts": {"episodes": 1440}}
    return {"round": 0, "stages": stages}


def test_a_row_a_condition_and_a_column_a_round(tmp_path: Path, capsys) -> None:
    for name, rounds in {
        "executed-1": [part(0.5), part(0.7, 90)],
        "executed-2": [part(0.5), part(0.9, 110)],
        "vote-1": [part(0.5)],
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "coevolve.json").write_text(json.dumps({"rounds": rounds}))
    main(["--experiments", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "| executed | 2 | 0.500 ± 0.000 | 0.800 ± 0.141 |" in printed
    assert "| vote | 1 | 0.500 |  |" in printed
    assert "| executed | 2 |  | 100.0 ± 14.1 |" in printed and "| executed | 2 |  | 6,240.0 ± 0.0 |" in printed

"""`benchmarks.table_figures`: a csv of a table becomes one picture, with every condition that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentevolver.evaluation.table_results import Results, write_csv
from benchmarks.table_figures import main


@pytest.fixture
def table(tmp_path: Path) -> Path:
    results = Results()
    for condition, gain in (("plain", 0.1), ("other", 0.2)):
        for seed in (1, 2):
            for step in (10, 20):
                results.add("training", "pocket", condition, seed, step, gain * step / 20 + seed / 100)
            results.add("evaluation", "pocket/dev", condition, seed, 20, gain)
            results.add("training", "pocket/guided", condition, seed, 20, gain)
    # Not every condition is trained, nor met on every split.
    results.add("evaluation", "pocket/dev/guided", "base", 1, 0, 0.5)
    write_csv(results, tmp_path / "table.csv")
    return tmp_path / "table.csv"


def test_a_panel_for_each_split_and_the_curves_beside(table: Path) -> None:
    pytest.importorskip("matplotlib")
    main([str(table)])
    drawn = table.with_suffix(".svg").read_text()
    assert all(
        f"<!-- {text} -->" in drawn
        for text in ("pocket/dev", "pocket, while training", "base", "plain (2)", "other (2, with experience)")
    )
    assert "<!-- pocket/dev/guided -->" not in drawn, "with experience in the panel of the split"
    main([str(table)])
    assert table.with_suffix(".svg").read_text() == drawn, "the same table is the same picture"
    main([str(table), "--conditions", "plain", "--out", str(table.with_name("one.svg"))])
    one = table.with_name("one.svg").read_text()
    assert "<!-- plain (2) -->" in one and "<!-- other (2) -->" not in one


def test_a_condition_that_is_not_there_is_named(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(table), "--conditions", "none"])
    assert "has no condition 'none', but plain, other, base" in capsys.readouterr().err

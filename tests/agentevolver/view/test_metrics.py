"""The numbers of a run: by name, from where one left off."""

from pathlib import Path

from agentevolver.trainer.monitor.log import supersede_metrics
from agentevolver.view.metrics import RunMetrics
from tests.agentevolver.view.runs import write_metrics

SUCCESS, VALIDATION = "rollout/success", "val-core/pocket/reward/mean@4"


def test_metrics_are_columns_with_gaps(tmp_path: Path) -> None:
    write_metrics(tmp_path, 0, 3)
    found = RunMetrics(tmp_path / "metrics.jsonl").read([SUCCESS, VALIDATION, "not/there"])
    assert found["steps"] == [0, 1, 2]
    assert found["series"] == {SUCCESS: [None, 0.32, 0.34], VALIDATION: [0.4, None, 0.42]}


def test_only_what_is_new_is_sent(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path / "metrics.jsonl")
    write_metrics(tmp_path, 0, 3)
    first = metrics.read([SUCCESS])
    write_metrics(tmp_path, 3, 5)
    after = metrics.read([SUCCESS], generation=first["generation"], since=3)
    assert (after["since"], after["steps"], after["series"][SUCCESS]) == (3, [3, 4], [0.36, 0.38])
    assert metrics.read([SUCCESS], generation=first["generation"], since=5)["steps"] == []


def test_a_resumed_run_begins_its_curves_anew(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path / "metrics.jsonl")
    write_metrics(tmp_path, 0, 6)
    first = metrics.read([SUCCESS])
    supersede_metrics(tmp_path, 2)
    write_metrics(tmp_path, 3, 4)
    after = metrics.read([SUCCESS], generation=first["generation"], since=6)
    assert after["generation"] != first["generation"]
    assert (after["since"], after["steps"]) == (0, [0, 1, 2, 3])

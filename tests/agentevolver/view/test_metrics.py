"""The numbers of a run: by name, from where one left off."""

from pathlib import Path

import orjson

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


def test_a_run_without_metrics_has_none(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path / "metrics.jsonl")
    assert metrics.read(["*"])["steps"] == [] and metrics.names() == []


def test_what_is_no_number_and_what_is_no_record_is_left_out(tmp_path: Path) -> None:
    records = [{"step": 1, "time": 1.0, "a": 1, "b": "text", "c": None, "d": True}, {"time": 2.0, "a": 3}]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    metrics = RunMetrics(tmp_path / "metrics.jsonl")
    assert metrics.names() == ["a"]
    assert metrics.read(["a"])["broken"] == 1

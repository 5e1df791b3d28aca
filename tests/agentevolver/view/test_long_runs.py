"""A run of many steps: what the page asks for every two seconds costs what it cost in the beginning."""

import cProfile
import pstats
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentevolver.utils.files import compress, write_jsonl
from agentevolver.view import trajectories as steps_module
from agentevolver.view.experiment import Experiment
from agentevolver.view.metrics import RunMetrics
from agentevolver.view.samples import Samples
from agentevolver.view.trajectories import AHEAD, Filter, StepFiles, Trajectories
from tests.agentevolver.view.runs import make_records, make_run, sample_of, write_metrics


def calls(work: Callable[[], Any]) -> int:
    """Count the function calls of some work, those into C included: a measure of its cost that the machine's load does
    not change."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def cost_of_a_poll(folder: Path, steps: int) -> int:
    run = make_run(folder, steps=1)
    files = {name: (run / name / "step_1.jsonl").read_bytes() for name in ("trajectories", "samples")}
    for name, content in files.items():
        for step in range(2, steps + 1):
            (run / name / f"step_{step}.jsonl").write_bytes(content)
    write_metrics(run, 2, steps + 1)
    experiment, metrics, trajectories = (
        Experiment(run),
        RunMetrics(run / "metrics.jsonl"),
        Trajectories(run / "trajectories"),
    )

    def poll() -> None:
        experiment.state()
        experiment.versions()
        metrics.read(["rollout/success", "val-core/*"], since=have)
        found = trajectories.find(Filter(), limit=40)
        assert found["rows"][0]["step"] == newest and trajectories.steps()[-1] == newest

    have, newest = 0, steps
    poll()
    have, newest = len(metrics.read([])["steps"]), steps + 2
    for step in (steps + 1, steps + 2):
        write_jsonl(run / "trajectories" / f"step_{step}.jsonl", make_records(step, 2))
    write_metrics(run, steps + 1, steps + 3)
    return calls(poll)


@pytest.mark.thorough
def test_a_poll_costs_the_same_however_many_steps_there_are(tmp_path: Path) -> None:
    few, many = cost_of_a_poll(tmp_path / "a" / "few", 40), cost_of_a_poll(tmp_path / "a" / "many", 1200)
    assert many <= 1.05 * few


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in range(1, 6):
        (tmp_path / f"step_{step}.jsonl").touch()
    return tmp_path


def test_new_steps_are_found_at_once_without_a_list_of_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = StepFiles(folder)
    assert list(files.steps()) == [1, 2, 3, 4, 5]
    monkeypatch.setattr(Path, "iterdir", None)
    for step in (6, 16, 16 + AHEAD):  # a validation is not of every step
        (folder / f"step_{step}.jsonl").touch()
    assert list(files.steps()) == [1, 2, 3, 4, 5, 6, 16, 16 + AHEAD]


def test_what_is_far_off_or_was_removed_is_noticed_within_a_minute(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(steps_module.time, "monotonic", lambda: now)
    files = StepFiles(folder)
    assert len(files.steps()) == 5
    (folder / f"step_{6 + AHEAD}.jsonl").touch()
    (folder / "step_1.jsonl").unlink()
    compress(folder / "step_2.jsonl")
    assert list(files.steps()) == [1, 2, 3, 4, 5] and files.path(1) is None
    assert files.path(2) == folder / "step_2.jsonl.gz" and files.path(3) == folder / "step_3.jsonl"
    now += steps_module.LIST_EVERY_S + 1
    assert list(files.steps()) == [2, 3, 4, 5, 6 + AHEAD]


def test_what_was_compressed_is_shown_like_the_rest(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a" / "run")
    trajectories, samples = Trajectories(run / "trajectories"), Samples(Experiment(run))
    before = trajectories.one(2, 3), samples.rows(2, trajectories.one(2, 1)["summary"]["id"])
    assert before[1]
    for name in ("trajectories", "samples"):
        compress(run / name / "step_2.jsonl")
    assert (trajectories.one(2, 3), samples.rows(2, trajectories.one(2, 1)["summary"]["id"])) == before
    assert [row["step"] for row in trajectories.find(Filter(step=2))["rows"]] == [2] * 8
    assert {row["step"] for row in trajectories.find(Filter())["rows"]} == {1, 2, 3}


def test_steps_that_were_dropped_are_not_there_and_disturb_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a" / "run")
    trajectories = Trajectories(run / "trajectories")
    assert len(trajectories.find(Filter())["rows"]) == 24
    (run / "trajectories" / "step_1.jsonl").unlink()
    assert {row["step"] for row in trajectories.find(Filter())["rows"]} == {2, 3}
    assert trajectories.find(Filter(step=1)) == {"rows": [], "next": None, "searched": 1}
    assert sample_of(trajectories.one(2, 0)["record"])["key"].endswith("_0")

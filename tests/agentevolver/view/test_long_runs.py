"""A run of many steps: what the page asks for every two seconds costs what it cost in the beginning."""

from pathlib import Path

import pytest

from agentevolver.utils.files import compress
from agentevolver.view import trajectories as steps_module
from agentevolver.view.experiment import Experiment
from agentevolver.view.samples import Samples
from agentevolver.view.trajectories import AHEAD, Filter, StepFiles, Trajectories
from tests.agentevolver.view.runs import make_run


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

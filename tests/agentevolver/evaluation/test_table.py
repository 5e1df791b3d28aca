"""`agentevolver table`: what is launched and in which order, what goes on where, and the figures of what is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agentevolver import cli
from agentevolver.evaluation.table_results import (
    differences,
)
from agentevolver.evaluation.tables import TablePlan, read_table
from agentevolver.trainer.checkpoints import seal
from agentevolver.utils.files import write_jsonl
from tests.agentevolver.launcher.fakes import until

YAML = """\
project: mine
experiment: base.yaml
seeds: [1, 2]
train: {trainer.total_training_steps: 2}
conditions:
  plain: {}
  other: {experiment: other.yaml, overrides: {data.val_splits: [dev, test], exp_manager.scout.split: null}}
"""
EVALUATION = "evaluation: {overrides: {trainer.val_only: true}}\n"
REWARDS = {("plain", 1): 0.5, ("plain", 2): 0.25, ("other", 1): 0.75, ("other", 2): 0.75}


class Launcher:
    """Stands at the edge of the process: notes launches, and leaves what a run leaves; `fails` names one that ends with
    1."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[list[str]] = []
        self.fails = fails

    def __call__(self, command: list[str], **_: object) -> int:
        arguments = command[2:]
        self.calls.append(arguments)
        given = dict(item.split("=", 1) for item in arguments if "=" in item)
        name = given["trainer.experiment_name"]
        if name == self.fails:
            return 1
        folder = Path("experiments") / "mine" / name
        condition, seed = name.split("-")[:2]
        if "trainer.val_only" not in given:
            leave_checkpoint(folder)
        metrics = [{"step": 0, "val-core/pocket/reward/mean@4": 0.0}]
        write_jsonl(
            folder / "metrics.jsonl",
            [*metrics, {"step": 2, "val-core/pocket/reward/mean@4": REWARDS[condition, int(seed)]}],
        )
        return 0


def leave_checkpoint(folder: Path) -> None:
    checkpoint = folder / "checkpoints" / "global_step_2"
    checkpoint.mkdir(parents=True)
    seal(checkpoint)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("base.yaml", "other.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "table.yaml").write_text(YAML)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, launcher: Launcher, *arguments: str) -> int:
    monkeypatch.setattr(subprocess, "call", launcher)
    return cli.main(["table", "table.yaml", *arguments])


def names(launcher: Launcher) -> list[str]:
    return [next(item.partition("=")[2] for item in call if "experiment_name=" in item) for call in launcher.calls]


def test_each_condition_with_each_seed_and_the_table_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    launcher = Launcher()
    assert run(monkeypatch, launcher, "ray.dashboard=false", "--train", "data.seed=9") == 0
    assert names(launcher) == ["plain-1", "other-1", "plain-2", "other-2"]
    assert launcher.calls[1] == [
        "--conf", "other.yaml", "trainer.project_name=mine", "trainer.experiment_name=other-1", "data.seed=1",
        "actor_rollout_ref.rollout.seed=1", "trainer.total_training_steps=2", "data.val_splits=[dev,test]",
        "exp_manager.scout.split=null", "data.seed=9", "ray.dashboard=false",
    ]  # fmt: skip
    text = (folder / "experiments" / "mine" / "table.md").read_text()
    assert "| pocket | 0.375 ± 1.588 | 0.750 ± 0.000 |" in text
    assert "| minus plain, seed by seed | other |" in text and "| pocket | +0.375 ± 1.588 |" in text
    assert text in capfd.readouterr().out
    rows = (folder / "experiments" / "mine" / "table.csv").read_text().splitlines()
    assert rows[0] == "phase,split,condition,seed,step,reward" and "training,pocket,other,1,2,0.750000" in rows
    assert len(rows) == 1 + 2 * 4  # two validations of each


def test_what_failed_goes_on_and_what_is_finished_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "table.yaml").write_text(YAML + EVALUATION)
    first = Launcher(fails="other-1-eval")
    assert run(monkeypatch, first) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line == "agentevolver table: error: other-1-eval ended with exit code 1; the same command resumes it"
    assert names(first) == ["plain-1", "plain-1-eval", "other-1", "other-1-eval"]
    second = Launcher()
    assert run(monkeypatch, second) == 0
    assert names(second) == ["other-1-eval", "plain-2", "plain-2-eval", "other-2", "other-2-eval"]
    assert f'trainer.resume_from_path="{folder}/experiments/mine/plain-2/checkpoints/global_step_2"' in second.calls[2]
    third = Launcher()
    assert run(monkeypatch, third) == 0 and third.calls == []


def test_a_run_that_measured_nothing_is_a_row_of_its_own_kind_and_is_not_compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Idle(Launcher):
        def __call__(self, command: list[str], **more: object) -> int:
            super().__call__(command, **more)
            if not (name := names(self)[-1]).startswith("other"):
                return 0
            counts = {"val-aux/pocket/rollouts": 4, "val-aux/pocket/never_acted": 4}
            metrics = Path("experiments") / "mine" / name / "metrics.jsonl"
            write_jsonl(metrics, [{"step": 0, "val-core/pocket/reward/mean@4": 0.0}, {"step": 2, **counts}])
            return 3

    launcher = Idle()
    assert run(monkeypatch, launcher) == 0 and len(launcher.calls) == 4
    text = (folder / "experiments" / "mine" / "table.md").read_text()
    assert "| plain (2) | other (0) |" in text and "| not measured: 2 |" in text and "minus plain, seed" not in text


def test_what_was_stopped_before_its_first_checkpoint_starts_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = folder / "experiments" / "mine"
    write_jsonl(there / "plain-1" / "metrics.jsonl", [{"step": 0}, {"step": 1}])
    write_jsonl(there / "other-1" / "metrics.jsonl", [{"step": 0}])
    write_jsonl(there / "plain-2" / "metrics.jsonl", [{"step": 1}, {"step": 2}])
    (there / "plain-2" / "checkpoints" / "global_step_1").mkdir(parents=True)
    seal(there / "plain-2" / "checkpoints" / "global_step_1")
    write_jsonl(there / "other-2" / "metrics.jsonl", [{"step": 1}])
    (there / "other-2" / "rounds.json").write_text("{}")
    monkeypatch.setattr("agentevolver.utils.recipes.in_progress", lambda folder: (folder / "rounds.json").exists())
    launcher = Launcher()
    assert run(monkeypatch, launcher) == 0
    over = ["trainer.resume_mode=disable" in call for call in launcher.calls]
    assert names(launcher) == ["plain-1", "other-1", "plain-2", "other-2"] and over == [True, False, False, False]


def test_a_model_that_is_not_trained_is_evaluated_with_its_condition_s_overrides(folder: Path) -> None:
    text = YAML.replace("plain: {}", "plain: {train: false, overrides: {actor_rollout_ref.model.path: weak}}")
    (folder / "table.yaml").write_text(text + EVALUATION)
    plan = TablePlan(read_table(folder / "table.yaml"), folder)
    cell = plan.cells()[0]
    evaluation = plan.evaluation(cell)
    assert plan.training(cell) is None and evaluation is not None
    assert {"trainer.val_only=true", "actor_rollout_ref.model.path=weak"} <= set(evaluation.overrides)


def test_a_condition_s_evaluation_takes_keys_of_its_own_and_none_of_its_training(folder: Path) -> None:
    condition = (
        "plain: {overrides: {algorithm.gamma: 0.9}, evaluation: {trainer.val_only: false, data.val_splits: [dev]}}"
    )
    (folder / "table.yaml").write_text(YAML.replace("plain: {}", condition) + EVALUATION)
    plan = TablePlan(read_table(folder / "table.yaml"), folder)
    cell = plan.cells()[0]
    training = plan.training(cell)
    assert training is not None and "algorithm.gamma=0.9" in training.overrides
    assert "data.val_splits=[dev]" not in training.overrides
    leave_checkpoint(plan.folder / cell.name)
    evaluation = plan.evaluation(cell)
    assert evaluation is not None and "algorithm.gamma=0.9" not in evaluation.overrides
    assert evaluation.overrides[-2:] == ("trainer.val_only=false", "data.val_splits=[dev]")


def test_experience_is_compared_with_a_baseline_that_has_none() -> None:
    found = {"pocket/dev": {"plain": {1: 0.5}, "other": {1: 0.6}}, "pocket/dev/guided": {"other": {1: 0.9}}}
    pairs = differences(found, "plain")
    assert pairs["pocket/dev"]["other"].mean == pytest.approx(0.1)
    assert pairs["pocket/dev/guided"]["other"].mean == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"project: mine": "projekt: mine"}, "project: "),
        ({"  plain: {}": "  plain: {train: false}"}, "neither trained nor evaluated"),
        ({"  plain: {}": "  plain: {evaluation: {data.val_splits: [dev]}}"}, "no section evaluation"),
    ],
)
def test_a_yaml_that_is_wrong_is_one_line(
    folder: Path, capfd: pytest.CaptureFixture[str], change: dict[str, str], message: str
) -> None:
    ((before, after),) = change.items()
    (folder / "table.yaml").write_text(YAML.replace(before, after, 1))
    assert cli.main(["table", "table.yaml"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("agentevolver table: error: table.yaml") and message in line


def test_what_is_known_from_elsewhere_is_not_run_again_and_stands_in_the_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "table.yaml").write_text(YAML + EVALUATION)
    assert run(monkeypatch, Launcher(), "--seeds", "1", "--out", "kept") == 0
    (folder / "experiments").rename(folder / "another machine")
    second = Launcher()
    assert run(monkeypatch, second, "--known", "kept.csv", "--out", "kept") == 0
    assert names(second) == ["plain-2", "plain-2-eval", "other-2", "other-2-eval"]
    assert "| pocket | 0.375 ± 1.588 | 0.750 ± 0.000 |" in capfd.readouterr().out
    (folder / "experiments").rename(folder / "a third one")
    third = Launcher()
    assert run(monkeypatch, third, "--known", "kept.csv", "--out", "again") == 0 and third.calls == []
    assert (folder / "again.csv").read_text() == (folder / "kept.csv").read_text()
    assert run(monkeypatch, third, "--known", "kept.csv", "--dry-run") == 0
    assert capfd.readouterr().out.splitlines()[-4:] == [
        "known: plain-1", "known: other-1", "known: plain-2", "known: other-2",
    ]  # fmt: skip


@pytest.mark.thorough
def test_a_run_beside_one_that_fails_goes_to_its_end_and_no_other_begins(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU cannot be shared out")
    failed, beside, launcher = threading.Event(), threading.Event(), Launcher(fails="plain-1")

    def start(command: list[str], **_: object) -> int:
        if "trainer.experiment_name=plain-1" in command:
            assert beside.wait(60)
            failed.set()
        else:
            beside.set()
            assert failed.wait(60)
            time.sleep(1)
        return launcher(command)

    monkeypatch.setattr(subprocess, "call", start)
    assert cli.main(["table", "table.yaml", "--jobs", "2"]) == 1
    assert "plain-1 ended with exit code 1; the same command resumes it" in capfd.readouterr().err
    assert sorted(names(launcher)) == ["other-1", "plain-1"]
    assert (folder / "experiments" / "mine" / "other-1" / "finished").exists()
    assert cli.main(["table", "table.yaml", "--jobs", "1000"]) == 2
    assert "--jobs 1000: " in capfd.readouterr().err


STOPPING = """\
import pathlib, signal, time
def stop(*_):
    pathlib.Path("stopped").touch()
    raise SystemExit(0)
signal.signal(signal.SIGTERM, stop)
pathlib.Path("started").touch()
time.sleep(60)
"""


@pytest.mark.service
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_launch_is_stopped_in_order_where_the_table_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, jobs: int
) -> None:
    if jobs > len(os.sched_getaffinity(0)):
        pytest.skip("two jobs want two CPUs")
    (folder / "launcher.py").write_text(STOPPING)
    code = (
        "import sys, pathlib; from agentevolver.cli.commands.table import main; main(sys.argv[1:], pathlib.Path.cwd())"
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    table = subprocess.Popen([sys.executable, "-c", code, "table.yaml", f"--jobs={jobs}"], start_new_session=True)
    try:
        until((folder / "started").exists)
    finally:
        table.send_signal(number)
        table.wait(20)
    until((folder / "stopped").exists)

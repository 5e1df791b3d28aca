"""Trainings of one session say what the same trainings say by themselves, whatever was trained before, refused, failed
or killed beside them."""

import json
import os
from pathlib import Path

import pytest

from agentevolver.utils.files import read_jsonl
from benchmarks.digests import SPENT, TIMES, differing
from tests.e2e.runs import ROOT, SMALL, Launched, launch
from tests.e2e.whole_loop import _timeless

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(1500)]

WANTED = ("trainer.total_training_steps=3", "trainer.save_freq=1", "trainer.test_freq=3")
OTHER = (
    *("trainer.total_training_steps=2", "trainer.save_freq=2", "trainer.test_freq=-1", "data.seed=7"),
    *("data.train_batch_size=6", "actor_rollout_ref.rollout.n=3", "actor_rollout_ref.actor.optim.lr=0.001"),
    *("actor_rollout_ref.rollout.temperature=0.8", "actor_rollout_ref.actor.kl_loss_coef=0.1"),
)
ONE = (
    "trainer.total_training_steps=1", "trainer.save_freq=-1", "trainer.test_freq=-1", "trainer.val_before_train=false",
)  # fmt: skip
FAILING = (*ONE, "actor_rollout_ref.rollout.step_timeout_s=0.001", "actor_rollout_ref.rollout.max_rollout_tries=1")


def training(name: str, *overrides: str, **more: object) -> dict[str, object]:
    return {"overrides": [*SMALL, *overrides, f"trainer.experiment_name={name}", "trainer.project_name=pocket"], **more}


def said(folder: Path) -> dict[str, object]:
    """All that a training says but the time: metrics, episodes, the numbers of every token."""
    found: dict[str, object] = {}
    for record in read_jsonl(folder / "metrics.jsonl"):
        found[f"metrics/{record['step']}"] = {
            key: value for key, value in record.items() if key != "time" and not key.startswith((*TIMES, *SPENT))
        }
    for kind in ("trajectories", "validation"):
        for path in sorted((folder / kind).glob("*.jsonl")):
            found[f"{kind}/{path.name}"] = [_timeless(record) for record in read_jsonl(path)]
    for path in sorted((folder / "samples").glob("*.jsonl")):
        found[f"samples/{path.name}"] = read_jsonl(path)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sessions")


@pytest.fixture(scope="module")
def alone(folder):
    run = launch(folder, "alone", *WANTED)
    try:
        assert run.wait() == 0, run.output
        return said(run.directory)
    finally:
        run.end()


@pytest.fixture(scope="module")
def told(folder):
    """What came of each training, by its place in the plan."""
    trained = str(folder / "pocket" / "other" / "checkpoints" / "global_step_2")
    plan = {
        "other": training("other", *OTHER),
        "refused": training("refused", *ONE, "actor_rollout_ref.rollout.max_model_len=580"),
        "failing": training("failing", *FAILING),
        "second": training("second", *WANTED),
        "continued": training("continued", *ONE, weights=trained),
        "killed": training("killed", *WANTED, kill="workers"),
        "lost": training("lost", *ONE),
        "continued alone": training("continued_alone", *ONE, f"trainer.weights={trained}", reopen=True),
        "resumed": training("killed", *WANTED),
    }
    (folder / "plan.json").write_text(json.dumps(list(plan.values())))
    env = {"SESSION_PLAN": str(folder / "plan.json"), "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"}
    run = Launched(folder, "plan", SMALL, env=env, flags=("--target", "session_job"))
    try:
        assert run.wait(1200) == 0, run.output
        assert not run.processes()
        return dict(zip(plan, read_jsonl(run.directory / "told.jsonl"), strict=True))
    finally:
        run.end()


def test_a_training_after_others_says_what_it_says_by_itself(folder, alone, told):
    assert "error" not in told["second"] and not told["second"]["opened"]
    assert {
        "metrics/0",
        "metrics/3",
        "trajectories/step_3.jsonl",
        "validation/step_3.jsonl",
        "samples/step_1.jsonl",
    } <= {*alone}
    assert differing(alone, said(folder / "pocket" / "second")) == []


def test_the_other_training_was_another_one(folder, alone, told):
    assert told["other"]["opened"] and len(told["other"]["steps"]) == 3
    assert differing(alone, said(folder / "pocket" / "other")) != []


def test_weights_are_the_same_in_a_session_and_by_themselves(folder, alone, told):
    continued, by_itself = said(folder / "pocket" / "continued"), said(folder / "pocket" / "continued_alone")
    assert not told["continued"]["opened"] and told["continued alone"]["opened"]
    assert "metrics/1" in continued and differing(continued, by_itself) == []
    assert continued["samples/step_1.jsonl"] != alone["samples/step_1.jsonl"], "nothing was loaded"
    # The reference stays the base, which the policy of these weights is some way off from.
    assert continued["metrics/1"]["actor/kl_loss"] > 3 * alone["metrics/1"]["actor/kl_loss"] >= 0


def test_what_cannot_change_is_refused_and_leaves_the_session_as_it_was(told):
    refused = told["refused"]
    assert refused["error"].startswith("CannotChange: a session cannot change ")
    assert "max_model_len (576 -> 580)" in refused["error"] and refused["usable"] and not refused["opened"]


def test_a_training_that_fails_by_itself_leaves_the_session_usable(told):
    assert told["failing"]["error"].startswith("TrainingFailed: ") and told["failing"]["usable"]


def test_a_killed_worker_ends_its_training_and_the_session(told):
    assert told["killed"]["error"].startswith("TrainingFailed: ") and not told["killed"]["usable"]
    assert told["lost"]["error"] == (
        "TrainingFailed: the session is lost with the training before: close it and open another one"
    )


def test_a_killed_training_goes_on_in_another_session(folder, alone, told):
    resumed = told["resumed"]
    assert "error" not in resumed and not resumed["opened"] and 0 < len(resumed["steps"]) < 4
    assert differing(alone, said(folder / "pocket" / "killed")) == []

"""A pretrained model of one's own with one key: two training steps on the whole stack, and an evaluation."""

import json
import subprocess
import sys

import pytest

from agentevolver.utils.files import read_jsonl
from tests.e2e.runs import ROOT, Launched
from tests.smollm2 import build

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# A step small enough for a test: four rollouts of two actions.
SMALL = (
    "device=cpu",
    "data.train_batch_size=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.multi_turn.max_steps=2",
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "ray.dashboard=false",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build(tmp_path_factory.mktemp("smollm2"))


def test_two_steps_train_with_one_key_and_rollout_and_trainer_agree(model, tmp_path):
    run = Launched(tmp_path, "real", (*SMALL, f"actor_rollout_ref.model.path={model}"))
    try:
        # 3: the model as it comes may get every action wrong, which the run says.
        assert run.wait() in (0, 3), run.output
    finally:
        run.end()
    steps = read_jsonl(run.directory / "metrics.jsonl")
    assert len(steps) == 2
    for step in steps:
        assert step["rollout/log_prob_diff/mean"] < 0.02
    (rows,) = [list(read_jsonl(path)) for path in sorted(run.directory.glob("trajectories/*1.jsonl"))]
    openings = {row["messages"][0]["content"] for row in rows}
    assert all("tool" in text.lower() for text in openings), "the texts explain themselves to a language model"
    assert all(row["steps"] for row in rows), "every episode began and acted"


def test_an_evaluation_needs_one_key_and_plays(model, tmp_path):
    out = tmp_path / "out.json"
    command = [
        "-m",
        "agentevolver",
        "eval",
        str(model),
        "--env",
        "pocket",
        "--tasks",
        "1",
        "--n",
        "2",
        "--out",
        str(out),
    ]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=600)
    # 3: none of its actions was right, which the line says.
    assert done.returncode in (0, 3), done.stdout + done.stderr
    counts = json.loads(out.read_text())["counts"]
    assert counts["rollouts"] == 2 and not counts["failed"] and not counts["never_began"] and counts["replies"]
    assert (done.returncode == 3) == (counts["never_acted"] == 2) == ("not measured" in done.stdout)

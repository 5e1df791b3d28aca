"""What follows a run, for real: its end tells it, and its checkpoint is exported, measured, watched and tabled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentevolver.trainer.shards import whole_state
from tests.agentevolver.evaluation.servers import chat_server
from tests.e2e.runs import ROOT, Launched, launch

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(1500)]


def verb(*arguments: str, said: str = "") -> str:
    command = [sys.executable, "-m", "agentevolver", *arguments]
    environ = {**os.environ, "COLUMNS": "140"}
    done = subprocess.run(
        command, cwd=ROOT, input=said, capture_output=True, text=True, timeout=600, env=environ, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    """A run of two steps, validated before and after, whose checkpoint holds the ranks' files alone."""
    contents = "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra]"
    steps = ("trainer.total_training_steps=2", "trainer.test_freq=2", "trainer.save_freq=2")
    run = launch(tmp_path_factory.mktemp("verbs"), "verbs", contents, *steps)
    assert run.process.wait(900) == 0, run.output[-3000:]
    return run


def test_the_end_of_the_run_says_what_happened(trained: Launched) -> None:
    said = trained.output
    assert "verbs finished after" in said and "step 2 of 2" in said and "tasks in pairs" in said
    assert f"agentevolver export {trained.directory}" in said and "Ctrl-C stops in order" in said
    assert "CPUs" not in said and "since the first" in said
    assert all(len(line) <= 100 for line in said.splitlines() if line.startswith("step "))


def test_the_exported_policy_says_the_log_probs_of_the_checkpoint(trained: Launched, tmp_path: Path) -> None:
    verb("export", str(trained.directory), "--to", str(tmp_path / "policy"))
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "policy").eval()
    AutoTokenizer.from_pretrained(tmp_path / "policy")
    (checkpoint,) = (trained.directory / "checkpoints").glob("global_step_*/actor")
    own = AutoModelForCausalLM.from_config(exported.config, dtype=torch.float32).eval()
    own.load_state_dict(whole_state(checkpoint))
    ids = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        assert torch.equal(exported(ids).logits.log_softmax(-1), own(ids).logits.log_softmax(-1))
    card = (tmp_path / "policy" / "README.md").read_text()
    assert "| pocket | 2 | " in card and "agentevolver run --conf" in card


def test_the_checkpoint_is_measured_as_it_was_validated(trained: Launched, tmp_path: Path) -> None:
    out = tmp_path / "verbs.json"
    said = verb("eval", str(trained.directory), "--n", "2", "--out", str(out))
    written = json.loads(out.read_text())
    assert "pass@2" in said and len(written["tasks"]) == 8 and written["failed"] == {} and written["step"] == 2
    again = verb("eval", str(trained.directory), "--n", "2", "--name", "again", "--beside", str(out))
    assert "+0.000 ± 0.000 (8 tasks)" in again, "the same seed draws the same episodes"


def test_the_policy_is_watched_step_by_step(trained: Launched) -> None:
    said = verb("chat", str(trained.directory), "--task", "note_add.k1.50000", said="note.add mug fun\n\n\n\n\nq\n")
    assert "user: add note mug with tag fun" in said and "environment: ok n2" in said
    assert "solved, score" in said or "left" in said


def test_an_environment_that_runs_code_gets_a_service_that_ends_with_the_evaluation(tmp_path: Path) -> None:
    out = tmp_path / "python.json"
    with chat_server(lambda messages: "I do not know.") as (url, _):
        how = ["--api", url, "--model", "m", "--key-env", "none", "--env", "python", "--split", "dev", "device=cpu"]
        said = verb("eval", *how, "--tasks", "1", "--n", "1", "--out", str(out))
    assert "python/dev" in said and json.loads(out.read_text())["failed"] == {}
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if command[1:6] == ["-m", "env_service", "serve", "--env", "python"]]

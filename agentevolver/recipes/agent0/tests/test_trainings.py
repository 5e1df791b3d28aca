"""Trainings in processes of their own: what ends them is said in one line, and nothing of them is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from agentevolver.recipes.agent0 import trainings
from agentevolver.recipes.agent0.tests.fakes import configuration
from agentevolver.recipes.agent0.trainings import RoundTraining, without_optimizer, write_training
from agentevolver.trainer.checkpoints import seal
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError, TrainingFailed
from agentevolver.utils.processes import identify

CHILD = """
import json, os, signal, sys, time
from pathlib import Path
folder = Path({folder!r})
(folder / "status.json").write_text(json.dumps({{"phase": "training", "step": 1}}))
print("step    1  reward 0.5", flush=True)
{then}
"""
FINISH = """
folder.joinpath("metrics.jsonl").write_text('{{"step": 0}}\\n{{"step": 1, "rollout/success": 0.5}}\\n')
weights = folder / "checkpoints" / "global_step_1" / "actor" / "huggingface"
weights.mkdir(parents=True)
(weights / "config.json").write_text("{{}}")
sys.path.insert(0, {root!r})
from agentevolver.trainer.checkpoints import seal
seal(folder / "checkpoints" / "global_step_1")
time.sleep(0.8)
"""


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return what runs a training whose process does what a script says; `lines` and `told` are what was shown."""
    config = configuration(tmp_path)
    folder = tmp_path / "experiment" / "round_1" / "solver"
    overlay = {"experiment.dir": str(folder), "data.train_batch_size": 4, "trainer.resume_mode": "auto"}
    one = RoundTraining("round 1 solver", folder, overlay, [Task("a", "calc")], [Task("b", "calc")], 1)
    lines: list[str] = []
    told: list[tuple[str, int | None]] = []

    async def run(then: str) -> Any:
        text = CHILD.format(folder=str(folder), then=then.format(root=str(Path(__file__).parents[3])))
        script = tmp_path / "child.py"
        script.write_text(text)
        monkeypatch.setattr(trainings, "command", lambda words: [*lifeline[:4], words[0], str(script)])
        return await trainings.train(
            one, lambda phase, step: told.append((phase, step)), config=config, show=lines.append
        )

    from agentevolver.utils.lifeline import command

    lifeline = command(["python"])
    run.lines, run.told, run.folder = lines, told, folder  # type: ignore[attr-defined]
    run.training, run.config = one, config  # type: ignore[attr-defined]
    return run


@pytest.mark.service
async def test_it_is_written_run_and_found_again(train: Any) -> None:
    trained = await train(FINISH)
    assert trained.checkpoint == str(train.folder / "checkpoints/global_step_1/actor/huggingface")
    assert [step["step"] for step in trained.steps] == [1]
    assert train.lines == ["    step    1  reward 0.5"] and ("training", 1) in train.told
    assert "step    1" in (train.folder / "logs" / "main.log").read_text()
    assert (train.folder / "config.yaml").exists() and (train.folder / "tasks" / "val.jsonl").exists()
    # It is over: its process is not started again.
    assert (await train("sys.exit(1)")).checkpoint == trained.checkpoint


@pytest.mark.service
async def test_one_that_ended_before_its_first_checkpoint_begins_anew(train: Any) -> None:
    def resume_mode() -> str:
        mode: str = OmegaConf.load(train.folder / "config.yaml").trainer.resume_mode
        return mode

    fail = """
folder.joinpath("metrics.jsonl").write_text('{{"step": 0}}\\n{{"step": 3}}\\n')
sys.exit(1)
"""
    for expected in ("auto", "disable"):
        with pytest.raises(TrainingFailed):
            await train(fail)
        assert resume_mode() == expected
    (train.folder / "checkpoints" / "global_step_1" / "actor").mkdir(parents=True)  # torn: killed while it was written
    await train(FINISH.replace("weights.mkdir(parents=True)", "weights.mkdir()"))
    assert resume_mode() == "disable"
    seal(train.folder / "checkpoints" / "global_step_1")
    write_training(replace(train.training, steps=2), train.config)
    assert resume_mode() == "auto", "there is a checkpoint to go on from"


@pytest.mark.service
@pytest.mark.parametrize(
    ("then", "error", "said"),
    [
        ("print('configuration: a key'); sys.exit(2)", ConfigError, "round 1 solver: a key"),
        ("print('error: no room'); sys.exit(1)", TrainingFailed, "round 1 solver: no room"),
        ("os.kill(os.getpid(), signal.SIGKILL)", TrainingFailed, r"its process was killed \(SIGKILL\); run the same"),
        ("sys.exit(0)", TrainingFailed, "without a checkpoint of step 1"),
        ("print('x' * 200_000); sys.exit(1)", TrainingFailed, "round 1 solver"),
    ],
)
async def test_how_it_ended_is_one_line(train: Any, then: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as raised:
        await train(then)
    assert "\n" not in str(raised.value)


@pytest.mark.service
async def test_a_training_ends_with_who_waits_for_it(train: Any) -> None:
    waiting = asyncio.create_task(train("(folder / 'pid').write_text(str(os.getpid())); time.sleep(60)"))
    while not (train.folder / "pid").exists() or not (train.folder / "pid").read_text():
        await asyncio.sleep(0.05)
    pid = int((train.folder / "pid").read_text())
    assert identify(pid) is not None
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert identify(pid) is None


def test_of_a_finished_training_the_weights_stay_and_the_optimiser_goes(tmp_path: Path) -> None:
    actor = tmp_path / "global_step_3" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    kept = [actor / "model_world_size_2_rank_0.pt", actor / "huggingface" / "model.safetensors"]
    for path in (*kept, actor / "optim_world_size_2_rank_0.pt", actor / "optim_world_size_2_rank_1.pt"):
        path.touch()
    without_optimizer(tmp_path)
    without_optimizer(tmp_path / "nowhere")
    assert sorted(path for path in actor.rglob("*") if path.is_file()) == sorted(kept)

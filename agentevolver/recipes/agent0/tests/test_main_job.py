"""The main job of rounds on the real worlds, with a scripted player and trainings that write files."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from agentevolver.recipes.agent0 import __main__ as job
from agentevolver.recipes.agent0.tests.fakes import chance, configuration, train_files
from agentevolver.recipes.agent0.types import Play
from agentevolver.types import Task
from agentevolver.utils.files import read_jsonl
from env_service.environments.calc.grammar import evaluate
from env_service.registry import resolve
from tests.env_service.local_hosts import serving

pytestmark = pytest.mark.service


class CalcPlayer:
    """Proposes chains that begin with their seed, and gets chains wrong more often the longer they are."""

    def __init__(self, config: object, settings: object, client: object) -> None:
        pass

    async def close(self) -> None:
        pass

    async def play(self, checkpoint: str, task: Task, n: int, name: str, validation: bool = False) -> Sequence[Play]:
        return [self._play(task, f"{name}.{i}") for i in range(n)]

    def _play(self, task: Task, name: str) -> Play:
        if task.env_type == "propose":
            _, family, digit, operator, _ = task.task_id.split(".")
            rng = random.Random(name)
            rest = [str(rng.randrange(10)) for _ in range(rng.randint(1, 5))]
            text = f"{family} {digit} {operator} " + " f ".join(rest)
            facts = {"question": text, "program": text, "answer": None, "refused": ""}
            return Play(None, 0, 1.0, True, facts, 1)
        if validation := task.metadata.get("validation"):
            return Play("1", 1, float(bool(validation)), True, {}, 2)
        question = task.metadata["env_params"]["problem"]["question"]
        right = chance(name, question) < 1 - 0.07 * len(question.split())
        return Play(evaluate(question) if right else "x", len(question.split()) // 2, float(right), right, {}, 3)


@pytest.fixture
async def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, Any]]:
    monkeypatch.setattr(job, "FrozenPlayer", CalcPlayer)
    monkeypatch.setattr(job, "train", train_files)
    async with serving(resolve(["calc", "propose"])) as service:
        yield configuration(tmp_path, **{"env_service.env_url": service.url, "data.val_filter": "{levels: [2,5]}"})


async def carried_out(config: dict[str, Any]) -> Path:
    """Run the main job, as the launcher does; returns the experiment's folder."""
    folder = Path(config["experiment"]["dir"])
    folder.mkdir(exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    assert await asyncio.to_thread(job.main, ["--config", str(path)]) == 0
    return folder


async def test_two_rounds_of_calc_are_labelled_by_its_programs(
    config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = await carried_out(config)
    shown = capsys.readouterr().out
    assert "round 2  pool 8 of" in shown and "labels 1.00 right" in shown
    records = read_jsonl(folder / "round_2" / "pool.jsonl")
    assert records and all(record["executed"] == evaluate(record["question"]) for record in records if record["k"])
    questions = json.loads((folder / "tasks" / "questions.json").read_text())
    assert len(questions) == 32 and {question.split()[0] for question in questions} == {"left", "right"}
    measured = json.loads((folder / "coevolve.json").read_text())["rounds"][2]["stages"]["evaluate"]["metrics"]
    assert {name: found["success"]["tasks"] for name, found in measured.items()} == {"dev": 32}
    before = (folder / "coevolve.json").read_bytes()
    assert await carried_out(config) == folder
    assert (folder / "coevolve.json").read_bytes() == before, "what is over is not done again"

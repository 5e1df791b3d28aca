"""A round in the world python whose programs' sandboxes are killed while they run: it comes to what an undisturbed one
comes to, and no program is blamed for it.

The service, its instances and their sandboxes are real; policies and trainings are scripted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from omegaconf import OmegaConf

from agentevolver.recipes.agent0 import __main__ as job
from agentevolver.recipes.agent0.tests.fakes import chance, configuration, train_files
from agentevolver.recipes.agent0.types import Play
from agentevolver.types import Task
from agentevolver.utils.files import read_jsonl
from env_service.registry import resolve
from tests.env_service.local_hosts import serving

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(300)]

# Long enough to be killed in.
PROGRAM = "import time\ntime.sleep(0.3)\nprint(sum(i * i for i in range({n})))"
# At most as often as a run is made again (`agentevolver.recipes.agent0.execute.TRIES`).
SANDBOX_KILLS, INSTANCE_KILLS = 1, 1
OF_TIME = ("began", "ended", "seconds")


class Scripted:
    """Proposes sums of squares, and answers those that others proposed right half of the time."""

    def __init__(self, *_: object) -> None:
        pass

    async def close(self) -> None:
        pass

    async def play(self, checkpoint: str, task: Task, n: int, name: str, validation: bool = False) -> Sequence[Play]:
        return [self._play(task, f"{name}.{i}") for i in range(n)]

    def _play(self, task: Task, name: str) -> Play:
        if task.env_type == "propose":
            number = random.Random(name).randrange(100, 10_000)
            question = f"What is the sum of the first {number} squares, from 0 on?"
            facts = {"question": question, "program": PROGRAM.format(n=number), "answer": "1", "refused": ""}
            return Play(None, 0, 1.0, True, facts, 1)
        if task.metadata.get("validation"):
            return Play("1", 1, 1.0, True, {}, 2)
        question = task.metadata["env_params"]["problem"]["question"]
        right = chance(name, question) < 0.5
        return Play(answer_of(question) if right else "x", 1, float(right), right, {}, 2)


def answer_of(question: str) -> str:
    return str(sum(i * i for i in range(int(question.split()[7]))))


def sandboxes() -> list[psutil.Process]:
    """The launchers of the sandboxes that are up, whose end is that of the interpreters in them."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("sandbox.launcher" in word for word in process.cmdline()):
                found.append(process)
    return found


async def kill_while(running: asyncio.Task[Any], service: Any, labelled: Path) -> int:
    """Kill all sandboxes, and later all instances with theirs, while programs run; returns how many were hit."""
    hit = 0
    for turn in range(SANDBOX_KILLS + INSTANCE_KILLS):
        while not (lines(labelled) > 4 * turn and service.instances):
            assert not running.done(), "the round was over before anything was killed"
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.15)
        workers = [psutil.Process(one.worker.link.pid) for one in service.instances.values() if one.worker]
        for process in sandboxes() if turn < SANDBOX_KILLS else workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                hit += 1
    return hit


def lines(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


@contextlib.asynccontextmanager
async def world() -> AsyncIterator[Any]:
    async with serving(resolve(["python", "propose"]), warm=1) as running:
        yield running


async def a_round(folder: Path, name: str, running: Any, kills: bool = False) -> tuple[dict[str, Any], int]:
    """Carry a round out; returns what it came to but for the time that it took, and how many processes were killed."""
    own = {"env_service.env_type": "python", "env_service.env_url": running.url, "recipes.agent0.rounds": 1}
    small = {"data.val_filter": "{level: 1}", "recipes.agent0.draws": 24, "recipes.agent0.pool": 24}
    config = configuration(folder, name, **own, **small)
    directory = Path(config["experiment"]["dir"])
    directory.mkdir()
    (directory / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    task = asyncio.create_task(asyncio.to_thread(job.main, ["--config", str(directory / "config.yaml")]))
    hit = await kill_while(task, running.service, directory / "round_1" / "pool.jsonl") if kills else 0
    assert await task == 0
    manifest = json.loads((directory / "coevolve.json").read_text())
    for part in manifest["rounds"]:
        for stage in part["stages"].values():
            for key in OF_TIME:
                stage.pop(key, None)
    del manifest["config_hash"]
    records = {record["task_id"]: record for record in read_jsonl(directory / "round_1" / "pool.jsonl")}
    return {"manifest": manifest, "pool": records}, hit


async def test_a_round_whose_sandboxes_are_killed_comes_to_what_an_undisturbed_one_comes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "FrozenPlayer", Scripted)
    monkeypatch.setattr(job, "train", train_files)
    async with world() as running:
        calm, _ = await a_round(tmp_path, "calm", running)
        killed, hit = await a_round(tmp_path, "killed", running, kills=True)
    assert not sandboxes()
    assert hit >= 2, "a sandbox and an instance, of those that were up"
    assert killed == calm
    assert len(calm["pool"]) == 24 and calm["manifest"]["rounds"][1]["stages"]["label"]["counts"]["kept"] >= 8
    for record in killed["pool"].values():
        assert record["executed"] == answer_of(record["question"]), "no program is blamed for what was killed"

"""Rounds without Ray: a world of sums, a player whose policies are numbers, trainings that write files.

A policy is a folder `global_step_N/actor/huggingface` with a skill in it; the greater it is, the longer the tasks that
it solves. Everything that is drawn follows from names, as with the real player.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from agentevolver.config.checks import from_config, load
from agentevolver.config.load import resolved_tree
from agentevolver.config.schema import Settings
from agentevolver.recipes.agent0.driver import Driver, StageResources
from agentevolver.recipes.agent0.manifest import Manifest
from agentevolver.recipes.agent0.measure import GateLabeller
from agentevolver.recipes.agent0.settings import settings_of
from agentevolver.recipes.agent0.trainings import ReportPhase, RoundTraining, TrainingResult, steps_of
from agentevolver.recipes.agent0.types import Play
from agentevolver.types import Task
from agentevolver.utils.files import append_jsonl, write_json
from agentevolver.utils.seeds import derived

WORLD = "calc"
_FOLDER = "/folder/of/a/test"


def chance(*name: str | int) -> float:
    """Return a number in 0..1 that follows from a name."""
    return derived("chance", *name) / 2**63


def configuration(folder: Path, name: str = "experiment", **overrides: Any) -> dict[str, Any]:
    """Return the resolved configuration of small rounds; None leaves a key of theirs out."""
    base = folder / "base"
    write_json(base / "skill.json", {"skill": 0.0})
    given = {
        "device": "cpu",
        "experiment.dir": folder / name,
        "actor_rollout_ref.model.path": base,
        "env_service.env_type": WORLD,
        "trainer.save_freq": 2,
        "data.train_batch_size": 4,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
        "recipes.agent0.enable": True,
        "recipes.agent0.rounds": 2,
        "recipes.agent0.pool": 8,
        "recipes.agent0.min_pool": 4,
        "recipes.agent0.draws": 48,
        "recipes.agent0.proposer.steps": 2,
        "recipes.agent0.proposer.batch_size": 4,
        "recipes.agent0.executor.steps": 3,
        "recipes.agent0.executor.eval_n": 2,
        "recipes.agent0.min_answered": 2,
        **overrides,
    }
    text = _composed(
        tuple(f"{key}={value}".replace(str(folder), _FOLDER) for key, value in given.items() if value is not None)
    )
    tree: dict[str, Any] = json.loads(text.replace(_FOLDER, str(folder)))
    return tree


@functools.cache
def _composed(overrides: tuple[str, ...]) -> str:
    """Return a resolved configuration as JSON; most tests have the same one in a folder of their own."""
    return json.dumps(resolved_tree(load(None, overrides).config))


class SumPlayer:
    """Plays sums `1+2+3`: each operator is a call, and each call goes wrong more often the longer the sum is."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []

    async def play(self, checkpoint: str, task: Task, n: int, name: str, validation: bool = False) -> Sequence[Play]:
        await asyncio.sleep(0)
        self.asked.append((checkpoint, name, n))
        skill = json.loads((Path(checkpoint) / "skill.json").read_text())["skill"]
        if task.env_type == "propose":
            return [self._proposal(task, name, i, skill) for i in range(n)]
        question = task.metadata["env_params"]["problem"]["question"] if not validation else task.metadata["sum"]
        return [self._sum(question, name, i, skill) for i in range(n)]

    def _sum(self, question: str, name: str, i: int, skill: float) -> Play:
        numbers = [int(word) for word in question.split("+")]
        right = chance(name, i, question) < max(0.05, 0.95 - 0.12 * (len(numbers) - 1) + skill)
        answer = None if chance(name, i, "silent") < 0.05 else str(sum(numbers) + (0 if right else 1))
        return Play(answer, len(numbers) - 1, float(right), right, {}, len(numbers))

    def _proposal(self, task: Task, name: str, i: int, skill: float) -> Play:
        length = 2 + int(5 * chance(name, i, "length") + skill)
        numbers = [str(int(9 * chance(name, i, place))) for place in range(length)]
        refused = "malformed: no question" if chance(name, i, "refused") < 0.1 else ""
        text = "+".join(numbers)
        facts = {"question": "" if refused else text, "program": text, "answer": None, "refused": refused}
        return Play(None, 0, float(not refused), not refused, facts, 1)


class SumWorld:
    """An environment client whose programs are sums."""

    async def create_instance(
        self, env_type: str, task_id: str, instance_id: str | None = None, params: dict[str, Any] | None = None
    ) -> Any:
        return {}

    async def step(
        self, instance_id: str, action: Any, params: dict[str, Any] | None = None, step_index: int | None = None
    ) -> Any:
        program = action["content"].removeprefix("run ")
        return {"state": [{"role": "user", "content": str(sum(int(word) for word in program.split("+")))}]}

    async def release_instance(self, instance_id: str) -> bool:
        return True


class FileTrainings:
    """Trainings whose steps are lines of metrics: a policy's skill grows by every step. A training that was interrupted
    goes on from the last step that was written."""

    def __init__(self) -> None:
        self.begun: list[RoundTraining] = []

    async def __call__(self, training: RoundTraining, told: ReportPhase) -> TrainingResult:
        self.begun.append(training)
        skill = json.loads((Path(start_of(training)) / "skill.json").read_text())["skill"]
        if not (training.folder / "config.yaml").exists():
            write_json(training.folder / "config.yaml", {"overlay": sorted(training.overlay)})
        done = len(steps_of(training.folder))
        for step in range(done + 1, training.steps + 1):
            told("training", step)
            append_jsonl(training.folder / "metrics.jsonl", {"step": step, "rollout/success": 0.5})
        weights = training.folder / "checkpoints" / f"global_step_{training.steps}" / "actor" / "huggingface"
        write_json(weights / "skill.json", {"skill": round(skill + 0.01 * training.steps, 4)})
        return TrainingResult(str(weights), steps_of(training.folder))


async def train_files(training: RoundTraining, told: ReportPhase, **_: Any) -> TrainingResult:
    """Train as `FileTrainings` does, in the place of `agentevolver.recipes.agent0.trainings.train`."""
    return await FileTrainings()(training, told)


def start_of(training: RoundTraining) -> str:
    """Return the weights that a training begins with."""
    return str(training.overlay["trainer.weights"] or training.overlay["actor_rollout_ref.model.path"])


async def seeds(number: int, purpose: str, count: int) -> list[str]:
    """Return names of seeds."""
    return [f"{purpose}.{number}.{i:05d}" for i in range(count)]


def val_tasks() -> list[Task]:
    """Return tasks of two splits and two levels."""
    return [
        Task(
            f"sum.{level}.{i:05d}",
            WORLD,
            metadata={"split": split, "validation": True, "sum": "+".join(["1"] * level + [str(i)])},
        )
        for split in ("dev", "test")
        for level in (2, 4)
        for i in range(3)
    ]


@functools.cache
def _settings(config: str) -> Settings:
    return from_config(OmegaConf.create(json.loads(config)))


def typed(config: dict[str, Any]) -> Settings:
    """Return the typed view of a configuration."""
    return _settings(json.dumps(config))


def parts(config: dict[str, Any], trainings: Any = None, player: Any = None) -> StageResources:
    """Return who does the work of such rounds."""
    settings = typed(config)
    player = player or SumPlayer()
    return StageResources(
        train=trainings or FileTrainings(),
        player=player,
        seeds=seeds,
        labeller=lambda checkpoint: GateLabeller(settings_of(settings), SumWorld(), WORLD, player, checkpoint),
        val_tasks=val_tasks(),
        questions=[task.metadata["sum"] for task in val_tasks()],
    )


def drive(
    config: dict[str, Any], made: StageResources | None = None, show: Callable[[str], None] | None = None
) -> Manifest:
    """Carry rounds out to their end; returns the manifest."""
    settings = typed(config)
    manifest = Manifest.open(settings.experiment_dir.resolve(), config)
    asyncio.run(Driver(config, settings, manifest, made or parts(config), show or (lambda line: None)).run())
    return manifest

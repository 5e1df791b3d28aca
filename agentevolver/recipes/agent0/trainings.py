"""The trainings of a round: each is an ordinary main job in a subprocess, with an experiment's folder of its own, on
the Ray cluster that the launcher started.

A killed training resumes from its last checkpoint. The subprocess and all its children end with this process.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from omegaconf import OmegaConf

from agentevolver.config.overlay import laid_over
from agentevolver.trainer.checkpoints import ACTOR, OPTIMIZER, only_starts_over, whole_checkpoints
from agentevolver.trainer.monitor.log import read_status
from agentevolver.trainer.preload import python_of
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError, TrainingFailed
from agentevolver.utils.files import parse, write_text
from agentevolver.utils.lifeline import command
from agentevolver.utils.ownership import sign
from task_manager.tasks import write_tasks

HUGGING_FACE = "huggingface"
LOG = "main.log"
POLL_S = 0.5
LINE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class RoundTraining:
    """One training of one policy on one list of tasks.

    `name` is for the user (`round 2 solver`); `overlay` holds the keys that differ from the run's configuration, by
    full name; `steps` is the number of training steps.
    """

    name: str
    folder: Path
    overlay: Mapping[str, Any]
    tasks: Sequence[Task]
    val_tasks: Sequence[Task]
    steps: int


@dataclass(frozen=True)
class TrainingResult:
    """Result of a training: the folder of the Hugging Face weights, and the metrics of its steps."""

    checkpoint: str
    steps: list[dict[str, Any]] = field(default_factory=list)


ReportPhase = Callable[[str, int | None], None]
"""Takes a training's phase and step."""


class TrainFunction(Protocol):
    async def __call__(self, training: RoundTraining, told: ReportPhase) -> TrainingResult:
        """Train to the last step, resuming if possible; a finished training is not repeated.

        Raises ConfigError if its configuration is refused, TrainingFailed if it failed or its process was killed.
        """
        ...


async def train(
    training: RoundTraining, told: ReportPhase, *, config: Mapping[str, Any], show: Callable[[str], None]
) -> TrainingResult:
    if (trained := finished(training)) is not None:
        return trained
    write_training(training, config)
    told("starting", None)
    code, last = await _run(training.folder.resolve(), told, show)
    log = training.folder / "logs" / LOG
    if code == 2:
        raise ConfigError(f"{training.name}: {last.removeprefix('configuration: ')}")
    if code >= 128:
        raise TrainingFailed(
            f"{training.name}: its process was killed ({_signal(code - 128)}); run the same command again, and it goes "
            f"on from its last checkpoint (the log is {log})"
        )
    if code:
        raise TrainingFailed(f"{training.name}: {last.removeprefix('error: ') or f'exit code {code}'} (log: {log})")
    if (trained := finished(training)) is None:
        raise TrainingFailed(f"{training.name}: it ended without a checkpoint of step {training.steps} ({log})")
    return trained


async def _run(folder: Path, told: ReportPhase, show: Callable[[str], None]) -> tuple[int, str]:
    """Run the main job; return its exit code and last printed line. Its output goes to the log."""
    log = folder / "logs" / LOG
    log.parent.mkdir(parents=True, exist_ok=True)
    words = command(
        [python_of(os.environ), "-m", "agentevolver.trainer.job.main", "--config", str(folder / "config.yaml")]
    )
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TENSORBOARD_DIR": str(folder / "tensorboard")},
        limit=LINE_BYTES,
        # Ctrl-C in a terminal must reach the launcher alone, which stops this process in order.
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    following = asyncio.create_task(_follow(folder, told))
    last = ""
    try:
        with log.open("ab", buffering=0) as file:
            async for line in process.stdout:
                file.write(line)
                text = line.decode(errors="replace").rstrip()
                last = text or last
                if text.startswith(("step ", "warning: ")):
                    show(f"    {text}")
        return await process.wait(), last
    finally:
        following.cancel()
        process.stdin.close()  # the lifeline: kills whatever the training started and left running
        await process.wait()


def write_training(training: RoundTraining, config: Mapping[str, Any]) -> None:
    """Write a training's configuration, with the current addresses of services, and its tasks unless they exist.
    Without a checkpoint the training starts over."""
    tasks = training.folder / "tasks"
    for name, own in (("train.jsonl", training.tasks), ("val.jsonl", training.val_tasks)):
        if not (tasks / name).exists():
            write_tasks(tasks / name, own)
    overlay = dict(training.overlay)
    if only_starts_over(training.folder):
        overlay["trainer.resume_mode"] = "disable"
    write_text(training.folder / "config.yaml", OmegaConf.to_yaml(laid_over(config, overlay)))
    sign(training.folder / "config.yaml")


def finished(training: RoundTraining) -> TrainingResult | None:
    whole = [one for one in whole_checkpoints(training.folder / "checkpoints") if one.step >= training.steps]
    if not whole:
        return None
    weights = whole[-1].folder / ACTOR / HUGGING_FACE
    if not (weights / "config.json").is_file():
        raise TrainingFailed(
            f"{training.name}: {weights} holds no model: actor_rollout_ref.actor.checkpoint.save_contents must name "
            "hf_model"
        )
    return TrainingResult(str(weights), steps_of(training.folder))


def steps_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    found = {record["step"]: record for line in lines if (record := parse(line)) is not None and "step" in record}
    return [found[step] for step in sorted(found) if step > 0]


def without_optimizer(checkpoints: Path) -> None:
    """Remove the optimiser's files, at least twice the size of the weights, from a training's checkpoints. Call it
    after the manifest says `done`: the next training needs only the weights."""
    for shard in checkpoints.glob(f"global_step_*/{ACTOR}/{OPTIMIZER}_world_size_*"):
        shard.unlink(missing_ok=True)


async def _follow(folder: Path, told: ReportPhase) -> None:
    seen: tuple[str, int | None] | None = None
    while True:
        await asyncio.sleep(POLL_S)
        status = read_status(folder)
        if "phase" in status and (now := (str(status["phase"]), status.get("step"))) != seen:
            seen = now
            told(*now)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

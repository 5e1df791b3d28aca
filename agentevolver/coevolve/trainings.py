"""The trainings of a round: one policy, from one set of weights, on one list of tasks.

`Trainings` is all that the rounds know of how it is done. `ChildTrainings` runs the main job of an ordinary run
(`agentevolver.run.main`) in a process and an experiment's folder of its own, on the Ray cluster that the launcher has
started; a training that was killed goes on from its last checkpoint, as any run does. The process and all that it
started end with the one that waits for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from omegaconf import OmegaConf

from agentevolver.checkpoints import ACTOR, OPTIMIZER, only_starts_over, whole_checkpoints
from agentevolver.config.overlay import laid_over
from agentevolver.errors import ConfigError, TrainingFailed
from agentevolver.monitor.log import read_status
from agentevolver.preload import python_of
from agentevolver.types import Task
from agentevolver.utils.files import write_text
from agentevolver.utils.lifeline import command
from task_manager.tasks import write_tasks

HUGGING_FACE = "huggingface"
LOG = "main.log"
POLL_S = 0.5


@dataclass(frozen=True)
class Training:
    """Training that is asked for.

    `name` says it to a person (`round 2 solver`); `overlay` holds the keys, by their full names, in which its
    configuration differs from the run's; the weights begin at `start`, a folder in Hugging Face's form or a name on its
    hub; `steps` is how many training steps it has.
    """

    name: str
    folder: Path
    overlay: Mapping[str, Any]
    tasks: Sequence[Task]
    val_tasks: Sequence[Task]
    start: str
    steps: int


@dataclass(frozen=True)
class Trained:
    """Result of a training: the folder of the weights in Hugging Face's form, and its steps' metrics."""

    checkpoint: str
    steps: list[dict[str, Any]] = field(default_factory=list)


Told = Callable[[str, int | None], None]
"""Is told how far a training is: its phase, and the step."""


class Trainings(Protocol):
    """Who trains."""

    async def train(self, training: Training, told: Told) -> Trained:
        """Train to the last step, or go on with what was begun; a training that is finished already is not repeated.

        Raises:
            ConfigError: the training's configuration is refused.
            TrainingFailed: it ended with an error, or its process was lost.
        """
        ...

    async def close(self) -> None:
        """End what is kept up between trainings."""
        ...


class ChildTrainings:
    """Each training is a process of its own.

    Args:
        config: the run's resolved configuration, a plain tree.
        show: what takes the lines that the trainings print.
    """

    def __init__(self, config: Mapping[str, Any], show: Callable[[str], None] = print) -> None:
        self._config = config
        self._show = show

    async def train(self, training: Training, told: Told) -> Trained:
        """Run the main job to its end (see `Trainings.train`)."""
        if (trained := finished(training)) is not None:
            return trained
        write_training(training, self._config)
        told("starting", None)
        code, last = await self._run(training, told)
        log = training.folder / "logs" / LOG
        if code == 2:
            raise ConfigError(f"{training.name}: {last.removeprefix('configuration: ')}")
        if code >= 128 or code < 0:
            number = code - 128 if code >= 128 else -code
            raise TrainingFailed(
                f"{training.name}: its process was killed ({_signal(number)}); run the same command again, and it goes "
                f"on from its last checkpoint (the log is {log})"
            )
        if code:
            raise TrainingFailed(f"{training.name}: {last.removeprefix('error: ') or f'exit code {code}'} (log: {log})")
        trained = finished(training)
        if trained is None:
            raise TrainingFailed(f"{training.name}: it ended without a checkpoint of step {training.steps} ({log})")
        return trained

    async def close(self) -> None:
        """Nothing is kept up."""

    async def _run(self, training: Training, told: Told) -> tuple[int, str]:
        """Return the exit code, and the last line that was printed."""
        folder = training.folder.resolve()
        log = folder / "logs" / LOG
        log.parent.mkdir(parents=True, exist_ok=True)
        words = command([python_of(os.environ), "-m", "agentevolver.run.main", "--config", str(folder / "config.yaml")])
        env = {**os.environ, "TENSORBOARD_DIR": str(folder / "tensorboard")}
        # A process group of its own: what a terminal sends to the run is for the launcher, which ends this process.
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
        following = asyncio.create_task(follow(folder, told))
        try:
            last = await self._copy(process, log)
            return await process.wait(), last
        finally:
            following.cancel()
            if process.returncode is None:
                assert process.stdin is not None
                process.stdin.close()  # the lifeline: all that the training has started is killed
                await process.wait()

    async def _copy(self, process: asyncio.subprocess.Process, log: Path) -> str:
        """Copy a process's output to its log, and its lines of steps to the console; returns the last line."""
        assert process.stdout is not None
        last = ""
        with log.open("ab", buffering=0) as file:
            while raw := await _line(process.stdout):
                file.write(raw)
                text = raw.decode(errors="replace").rstrip()
                last = text or last
                if text.startswith(("step ", "warning: ")):
                    self._show(f"    {text}")
        return last


def write_training(training: Training, config: Mapping[str, Any]) -> None:
    """Write the folder of a training: its tasks, unless they are there, and its configuration, in which the addresses
    of services are those of this start. One that was ended before its first checkpoint is to begin anew: nothing has
    come of it, and there is nothing to go on from."""
    tasks = training.folder / "tasks"
    for name, own in (("train.jsonl", training.tasks), ("val.jsonl", training.val_tasks)):
        if not (tasks / name).exists():
            write_tasks(tasks / name, own)
    overlay = dict(training.overlay)
    if only_starts_over(training.folder):
        overlay["trainer.resume_mode"] = "disable"
    write_text(training.folder / "config.yaml", OmegaConf.to_yaml(laid_over(config, overlay)))


def finished(training: Training) -> Trained | None:
    """Return what came of a training that has its last step, None for another."""
    whole = [one for one in whole_checkpoints(training.folder / "checkpoints") if one.step >= training.steps]
    if not whole:
        return None
    weights = whole[-1].folder / ACTOR / HUGGING_FACE
    if not (weights / "config.json").is_file():
        raise TrainingFailed(
            f"{training.name}: {weights} holds no model: actor_rollout_ref.actor.checkpoint.save_contents must name "
            "hf_model"
        )
    return Trained(str(weights), steps_of(training.folder))


def steps_of(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of a training's steps, in order."""
    try:
        lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = {}
    for line in lines:
        try:
            record = json.loads(line)
            found[int(record["step"])] = record
        except (ValueError, KeyError, TypeError):
            continue
    return [found[step] for step in sorted(found) if step > 0]


def without_optimizer(checkpoints: Path) -> None:
    """Remove the optimiser's part of a training's checkpoints, twice the weights and more: what comes after it begins
    with the weights alone. To be called once the manifest says that it is over, since nothing goes on from them
    then."""
    for shard in checkpoints.glob(f"global_step_*/{ACTOR}/{OPTIMIZER}_world_size_*"):
        shard.unlink(missing_ok=True)


async def _line(stream: asyncio.StreamReader) -> bytes:
    """Return the next line, or as much of a very long one as fits."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as end:
        return end.partial
    except asyncio.LimitOverrunError as error:
        return await stream.readexactly(error.consumed)


async def follow(folder: Path, told: Told) -> None:
    """Tell how far a training is, by its status file."""
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

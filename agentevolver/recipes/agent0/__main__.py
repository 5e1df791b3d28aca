"""The main job of rounds: `python -m agentevolver.recipes.agent0 --config EXPERIMENT/config.yaml`.

The launcher starts it beside the environment service, the Ray cluster and the server of frozen policies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from omegaconf import OmegaConf

from agentevolver.config.schema import Settings
from agentevolver.recipes.agent0.driver import Driver, StageResources
from agentevolver.recipes.agent0.manifest import PROPOSE, Manifest
from agentevolver.recipes.agent0.measure import GateLabeller
from agentevolver.recipes.agent0.overlays import check_trainings
from agentevolver.recipes.agent0.play import FrozenPlayer, PlayFailed
from agentevolver.recipes.agent0.settings import PROPOSE_ENV, settings_of
from agentevolver.recipes.agent0.stages import Seeds
from agentevolver.recipes.agent0.trainings import train
from agentevolver.trainer.job.main import begin, list_tasks
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError, TrainingFailed
from agentevolver.utils.files import write_text
from agentevolver.utils.terminal import guard_output
from env_service.client import AsyncEnvClient, EnvServiceError
from task_manager.tasks import env_params_of, seed_of

QUESTIONS = "questions.json"
AT_ONCE = 8


def main(argv: Sequence[str] | None = None) -> int:
    guard_output()
    parser = argparse.ArgumentParser(
        prog="python -m agentevolver.recipes.agent0", description="Train a proposer and an executor by turns."
    )
    parser.add_argument("--config", type=Path, required=True, help="the run's config.yaml, as the launcher wrote it")
    arguments = parser.parse_args(argv)
    try:
        config, settings = begin(arguments.config)
        tree: dict[str, Any] = OmegaConf.to_container(config, resolve=False)  # type: ignore[assignment]
        check_trainings(tree, settings)
        manifest = Manifest.open(settings.experiment_dir.resolve(), tree)
        _, val_tasks = list_tasks(config, settings)
        # Libraries write to the log, the rounds to the console.
        log = settings.experiment_dir / "logs" / "driver.log"
        show = partial(print, file=sys.stdout, flush=True)
        with log.open("a", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
            asyncio.run(carry_out(tree, settings, manifest, val_tasks, show))
    except ConfigError as error:
        print(f"configuration: {error}", file=sys.stderr)
        return 2
    except (EnvServiceError, PlayFailed, TrainingFailed, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


async def carry_out(
    config: dict[str, Any],
    settings: Settings,
    manifest: Manifest,
    val_tasks: Sequence[Task],
    show: Callable[[str], None],
) -> None:
    service, section = settings.env_service, settings_of(settings)
    world = settings.environments[0].env_type
    async with (
        AsyncEnvClient(service.env_url, timeout_s=service.timeout_s) as client,
        AsyncExitStack() as started,
    ):
        player = FrozenPlayer(config, settings, client)
        started.push_async_callback(player.close)
        parts = StageResources(
            train=partial(train, config=config, show=show),
            player=player,
            seeds=listed_seeds(client, settings),
            labeller=lambda checkpoint: GateLabeller(section, client, world, player, checkpoint),
            val_tasks=val_tasks,
            questions=await questions_of(client, settings, val_tasks),
        )
        await Driver(config, settings, manifest, parts, show).run()


def listed_seeds(client: AsyncEnvClient, settings: Settings) -> Seeds:
    """Return a function that lists seeds of the environment `propose`; no seed is used twice in a run."""
    section = settings_of(settings)
    training = section.proposer.steps * section.proposer.batch_size
    world = settings.environments[0].env_type

    async def seeds(number: int, purpose: str, count: int) -> list[str]:
        offset = (number - 1) * (training + section.draws) + (0 if purpose == PROPOSE else training)
        return await client.get_env_profile(PROPOSE_ENV, "train", {"world": world, "count": count, "offset": offset})

    return seeds


async def questions_of(client: AsyncEnvClient, settings: Settings, tasks: Sequence[Task]) -> list[str]:
    """Return the questions of the evaluation's tasks, cached beside the task files. Raises EnvServiceError."""
    path = settings.experiment_dir / "tasks" / QUESTIONS
    if path.exists():
        kept: list[str] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    slots = asyncio.Semaphore(AT_ONCE)

    async def ask(task: Task) -> str:
        instance_id = f"question-{uuid4().hex}"
        params = {**settings.environment(task.env_type).params(validation=True), **env_params_of(task)}
        async with slots:
            state = await client.create_instance(task.env_type, seed_of(task), instance_id, params)
            await client.release_instance(instance_id)
        said = [message["content"] for message in state["state"] if message["role"] == "user"]
        return str(said[-1]) if said else ""

    found = list(await asyncio.gather(*map(ask, tasks)))
    write_text(path, json.dumps(found))
    return found


if __name__ == "__main__":
    sys.exit(main())

"""The main job: `python -m agentevolver.trainer.job.main --config experiments/<project>/<experiment>/config.yaml`.

It lists the tasks, probes openings before the engines start, and runs verl's trainer with a console.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from agentevolver.config.agent import agent_function, check_command
from agentevolver.config.checks import for_verl, from_config
from agentevolver.config.schema import Settings
from agentevolver.config.verl_keys import ask_verl
from agentevolver.rollout.tools.formats import VLLM, detect_format, tool_format
from agentevolver.trainer.job import cold_start
from agentevolver.trainer.job.openings import make_renderer, probe
from agentevolver.trainer.monitor.console import Console
from agentevolver.trainer.monitor.findings import nothing_measured
from agentevolver.trainer.monitor.log import Status
from agentevolver.types import Task
from agentevolver.utils import net, recipes
from agentevolver.utils.errors import ConfigError, NothingMeasured, TrainingFailed
from agentevolver.utils.secrets import adopt_secrets
from agentevolver.utils.terminal import guard_output
from agentevolver.utils.turn_ends import disagreement
from context_manager.chat import ChatRenderer, ChatTemplateError
from context_manager.exactness import check_template
from env_service.client import AsyncEnvClient, EnvRequestError, EnvServiceError
from task_manager.graders.base import GraderConfigError
from task_manager.graders.registry import GraderContext, make_grader
from task_manager.tasks import environment_tasks, read_tasks, write_tasks

logger = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the main job. Return 2 for a configuration error, 1 for a failed run, 3 if nothing was measured."""
    guard_output()
    parser = argparse.ArgumentParser(
        prog="python -m agentevolver.trainer.job.main", description="Train on a composed configuration."
    )
    parser.add_argument("--config", type=Path, required=True, help="the run's config.yaml, as the launcher wrote it")
    arguments = parser.parse_args(argv)
    try:
        config, settings = begin(arguments.config)
        check(config, settings)
        _ask_verl(config, settings)
        prepare(config, settings)
        _train(config, settings)
    except ConfigError as error:
        print(f"configuration: {error}", file=sys.stderr)
        return 2
    except (EnvServiceError, TrainingFailed, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if (problem := nothing_measured(settings.experiment_dir)) is not None:
        print(f"error: {problem}", file=sys.stderr)
        return NothingMeasured.exit_code
    return 0


def begin(path: Path) -> tuple[DictConfig, Settings]:
    """Read the configuration and set up this process: umask, secrets, log. Raises ConfigError, OSError."""
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    settings = from_config(config)
    if not settings.shared_files:
        os.umask(0o077)
    adopt_secrets()
    logging.basicConfig(filename=_log_path(settings), level=logging.INFO, format=LOG_FORMAT)
    return config, settings


def check(config: DictConfig, settings: Settings) -> None:
    """Check what needs neither a service nor an engine. Raises ConfigError."""
    check_stages(settings)
    check_agent(settings)
    check_weights(config, settings)


def prepare(config: DictConfig, settings: Settings) -> None:
    """List, make and probe the tasks, then make the cold start and the experience pool.

    Raises ConfigError, TrainingFailed, EnvServiceError.
    """
    # Cheap steps come first: listing and opening tasks is free, making synthetic ones costs model calls.
    originals, validation = list_tasks(config, settings)
    section = settings.task_manager
    trained = originals if section.mixture.use_original_tasks else []
    questioned = [task for task in originals if task.env_type in settings.questioned]
    check_size(config, settings, originals)
    recipes.called("prepare", config, settings, trained)
    unmade = [replace(task, open_query=True) for task in questioned] if section.makes_tasks else []
    renderer = make_renderer(config)
    if settings.rollout.tool_format == "auto":
        logger.info("the chat template writes tool calls as %s", detect_format(renderer.tokenizer))
    check_chat_template(settings, renderer)
    check_episodes(settings, [*trained, *unmade, *validation], renderer)
    synthetic: list[Task] = []
    if settings.draws_epochs:
        from agentevolver.trainer.job import questioning

        synthetic = questioning.prepare(settings, originals)
        check_episodes(settings, synthetic, renderer)
        recipes.called("prepare", config, settings, synthetic)
    cold_start.prepare(config, settings, renderer)
    if settings.exp_manager.enabled:
        from agentevolver.trainer.experience import prepare

        prepare(settings, [*trained, *synthetic, *validation])


def list_tasks(config: DictConfig, settings: Settings) -> tuple[list[Task], list[Task]]:
    """Write the experiment's task files if missing, and point verl's dataset at them. Return training and validation
    tasks."""
    folder = settings.experiment_dir.resolve() / "tasks"
    train, validation = folder / "train.jsonl", folder / "val.jsonl"
    if not (train.exists() and validation.exists()):
        Status(settings.experiment_dir).set("listing the tasks")
        asyncio.run(_list_tasks(settings, train, validation))
    with open_dict(config):
        config.data.train_files = str(train)
        config.data.val_files = str(validation)
    return read_tasks(train), read_tasks(validation)


async def _list_tasks(settings: Settings, train: Path, validation: Path) -> None:
    service, grader = settings.env_service, settings.task_manager.grader.original_grader
    async with AsyncEnvClient(service.env_url, timeout_s=service.timeout_s) as client:
        try:
            tasks = [
                task
                for one in settings.environments
                if one.weight > 0
                for task in await environment_tasks(
                    client, one.env_type, one.train_split, params=dict(one.train_filter), evaluator=grader
                )
            ]
            held_out = [
                task
                for one in settings.environments
                for split in one.val_splits
                for task in await environment_tasks(
                    client, one.env_type, split, validation=True, params=dict(one.val_filter)
                )
            ]
        except (ValueError, EnvRequestError) as error:
            own = " (env_service.environments may name its own)" if service.is_mixture else ""
            raise ConfigError(
                f"the splits in data.train_split and data.val_splits cannot be listed: {error}{own}"
            ) from error
    write_tasks(train, tasks)
    write_tasks(validation, held_out)


def check_stages(settings: Settings) -> None:
    """Construct every configured stage, clip rule and external grader once. Raises ConfigError."""
    from advantage_processor.pipeline import Processor, StageError

    try:
        Processor(settings.attribution, hybrid_data=settings.task_manager.mixture.is_hybrid)
    except StageError as error:
        raise ConfigError(f"attribution_driven_credit_assignment.stages: {error}") from error
    if settings.trainer.reward_stages:
        from agentevolver.trainer.reward_stages import RewardStages

        try:
            RewardStages(settings.trainer.reward_stages, settings)
        except ValueError as error:
            raise ConfigError(f"trainer.reward_stages: {error}") from error
    try:
        for rule in settings.trainer.row_clips:
            rule.make("clip", 0.2)
    except ValueError as error:
        raise ConfigError(f"trainer.row_clips: {error}") from error
    grader = settings.task_manager.grader
    if ":" in grader.original_grader:
        context = GraderContext(grader, None, settings.rollout.sparse, run=settings)
        try:
            make_grader(grader.original_grader, context)
        except GraderConfigError as error:
            raise ConfigError(f"task_manager.grader.original_grader: {error}") from error


def check_size(config: DictConfig, settings: Settings, tasks: Sequence[Task]) -> None:
    """Raise ConfigError if verl draws the epochs and there are fewer tasks than a step takes."""
    wanted = settings.sizes.train_batch_size
    if not (settings.draws_epochs or OmegaConf.select(config, "trainer.val_only")) and len(tasks) < wanted:
        raise ConfigError(
            f"data.train_split has {len(tasks)} tasks, fewer than data.train_batch_size = {wanted}: name a larger "
            "split, or set the latter lower"
        )


def check_agent(settings: Settings) -> None:
    """Import the agent's function or find its program. Raises ConfigError."""
    if settings.rollout.agent_function is not None:
        agent_function(settings.rollout.agent_function)
    check_command(settings.rollout)


def check_weights(config: DictConfig, settings: Settings) -> None:
    """Raise ConfigError if `trainer.weights` are missing or belong to another model."""
    from agentevolver.trainer.weights import check_architecture, weights_at

    if settings.trainer.weights is not None:
        model = config.actor_rollout_ref.model
        check_architecture(weights_at(settings.trainer.weights), model)


def check_parser(config: DictConfig, settings: Settings) -> None:
    """Construct vLLM's tool-call parser if one is configured. Imports vLLM. Raises ConfigError."""
    if settings.rollout.tool_format.startswith(VLLM):
        tool_format(settings.rollout.tool_format, make_renderer(config).tokenizer)


def check_chat_template(settings: Settings, renderer: ChatRenderer) -> None:
    """Warn if prompts differ from the chat template's rendering of the whole conversation. Raises ConfigError if it
    refuses."""
    rollout = settings.rollout
    try:
        warnings = check_template(renderer, rollout, None if rollout.tool_format == "none" else [])
    except ChatTemplateError as error:
        raise ConfigError(
            f"actor_rollout_ref.rollout.context_template = {rollout.context_template} cannot be used with the chat "
            f"template of the model: {error}"
        ) from error
    for warning in filter(None, [*warnings, disagreement(renderer.tokenizer, renderer.end_id)]):
        logger.warning("%s", warning)
        print(f"warning: {warning}", file=sys.stderr)


def check_episodes(settings: Settings, tasks: Sequence[Task], renderer: ChatRenderer) -> None:
    """Open a few episodes. Raises ConfigError for errors that would otherwise appear after the engines have started."""
    if tasks:
        Status(settings.experiment_dir).set("opening a few episodes")
        longest = asyncio.run(probe(settings, tasks, renderer))
        logger.info("the longest of the probed openings has %d tokens", longest)


def keep_ray_here(settings: Settings) -> None:
    """Make a private Ray cluster listen on loopback only. Must run before Ray is imported."""
    if not (settings.ray.address or os.environ.get("RAY_ADDRESS")):
        os.environ.update(net.ON_LOOPBACK)


def _log_path(settings: Settings) -> Path:
    folder = settings.experiment_dir / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "driver.log"


def _ask_verl(config: DictConfig, settings: Settings) -> None:
    keep_ray_here(settings)
    with _log_path(settings).open("a", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        ask_verl(for_verl(config))


def _train(config: DictConfig, settings: Settings) -> None:
    with (
        Console(settings.experiment_dir),
        _log_path(settings).open("a", encoding="utf-8") as file,
        redirect_stdout(file),
        redirect_stderr(file),
    ):
        from agentevolver.trainer.run import run

        check_parser(config, settings)
        run(for_verl(config), settings)


if __name__ == "__main__":
    sys.exit(main())

"""Synthetic tasks of a training run. Until training begins, each start makes the missing ones."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from agentevolver.config.manager_settings import questionings
from agentevolver.config.schema import Settings
from agentevolver.llm import LLM, LLMError
from agentevolver.llm.embeddings import EncoderUnavailable
from agentevolver.trainer.monitor.console import Console
from agentevolver.trainer.monitor.log import Status
from agentevolver.trainer.monitor.watchdog import Watchdog
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError, TrainingFailed
from agentevolver.utils.files import write_json
from agentevolver.utils.inflight import BOARD, described
from task_manager.epochs import Epochs
from task_manager.journal import JournalError, fingerprint
from task_manager.pipeline import QuestioningFailed
from task_manager.profile import ProfileError
from task_manager.settings import QuestioningConfiguration
from task_manager.synthetic_tasks import PipelineRun, existing_tasks, open_run, record_path, synthetic_tasks_of

logger = logging.getLogger(__name__)

# Lines of progress that a run without a terminal prints.
LINES = 10
CHATTY = ("httpx", "httpx2", "httpcore", "openai", "sentence_transformers")


def prepare(settings: Settings, originals: Sequence[Task]) -> list[Task]:
    """Make or load the synthetic tasks and check that they fill an epoch. Return them.

    Raises ConfigError, TrainingFailed, EnvServiceError.
    """
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    configurations = questionings(settings)
    for configuration in configurations:
        section = configuration.task_manager
        if section.makes_tasks:
            with Console(settings.experiment_dir):
                _make(settings, configuration)
        elif not existing_tasks(configuration):
            raise ConfigError(f"task_manager.train_data_path = {section.train_data_path} holds no task")
    first, later = synthetic_tasks_of(configurations)
    if settings.draws_epochs:
        _check_epoch(settings, originals, first)
    return [*first, *later]


def _check_epoch(settings: Settings, originals: Sequence[Task], synthetic: Sequence[Task]) -> None:
    several = settings.env_service.is_mixture
    weights = {one.env_type: one.weight for one in settings.environments} if several else None
    try:
        size = len(Epochs(settings.task_manager, originals, synthetic, weights))
    except ValueError as error:
        raise ConfigError(f"{'env_service.env_type' if several else 'task_manager.mixture'}: {error}") from error
    if size < settings.sizes.train_batch_size:
        raise ConfigError(
            f"an epoch has {size} tasks ({len(originals)} original and {len(synthetic)} synthetic ones to "
            "draw from), fewer than "
            f"data.train_batch_size = {settings.sizes.train_batch_size}: make more, or set the latter lower"
        )


def _make(settings: Settings, configuration: QuestioningConfiguration) -> None:
    try:
        asyncio.run(_make_tasks(settings, configuration))
    except ProfileError as error:
        raise ConfigError(f"task_manager.env_profile: {error}") from error
    except (QuestioningFailed, LLMError, JournalError, EncoderUnavailable) as error:
        raise TrainingFailed(f"synthetic tasks could not be made: {error}") from error


async def _make_tasks(settings: Settings, configuration: QuestioningConfiguration) -> None:
    env_type = configuration.env_service.env_type
    path = record_path(settings.experiment_dir, env_type if settings.env_service.is_mixture else None)
    target = configuration.task_manager.train_data_path
    async with LLM(configuration.llm) as llm, open_run(configuration, llm) as run:
        plan = fingerprint(
            {**run.plan.to_dict(), "target": str(target), "target_tasks": configuration.task_manager.target_tasks}
        )
        existing = existing_tasks(configuration, run.plan)
        if any("origin" not in task.metadata for task in existing):
            raise ConfigError(
                f"task_manager.train_data_path = {target} holds tasks of another source: set task_manager.n to 0 "
                "to train on them, or give another path"
            )
        if existing and path.exists() and _is_settled(path, plan, settings):
            logger.info("%d synthetic tasks exist already: %s", len(existing), target)
            return
        status = Status(settings.experiment_dir)
        watchdog = Watchdog(
            settings.watchdog,
            settings.experiment_dir / "logs" / "watchdog.log",
            status.note,
            lambda: described(BOARD.waiting()),
        )
        watchdog.start()
        try:
            where = f" of {env_type}" if settings.env_service.is_mixture else ""
            tasks = await run.make_tasks(_progress(status, watchdog, where))
        finally:
            watchdog.close()
        pipeline = run.pipeline
        complete = not pipeline.budget_spent and not pipeline.failures
        if pipeline.budget_spent:
            logger.warning("the budget is spent; training goes on with the %d tasks that were made", len(tasks))
        spent = llm.ledger.spent()
        write_json(path, {"plan": plan, "complete": complete, "metrics": _metrics(run, spent.tokens, spent.cost)})


def _metrics(run: PipelineRun, tokens: int, cost: float) -> dict[str, float]:
    funnel = run.pipeline.funnel()
    funnel.tokens, funnel.cost = tokens, cost
    return funnel.metrics()


def _is_settled(path: Path, plan: str, settings: Settings) -> bool:
    # A plan that was carried out partly is final too once training has begun.
    made = json.loads(path.read_text(encoding="utf-8"))
    return made["plan"] == plan and (made["complete"] or (settings.experiment_dir / "metrics.jsonl").exists())


def _progress(status: Status, watchdog: Watchdog, where: str = "") -> Callable[[int, int, int], None]:
    told = -1
    watchdog.enter("the next exploration")

    def tell(done: int, total: int, kept: int) -> None:
        nonlocal told
        watchdog.enter("the next exploration")
        if done * LINES // total > told:
            told = done * LINES // total
            what = f"making tasks{where}: {done} of {total} explorations, {kept} tasks kept"
            status.set(what, done=done, total=total)

    return tell

"""Synthetic tasks of a configuration: builds and runs its pipeline, and reads its task files."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentevolver.llm.embeddings import CachedEncoder, Encoder, make_encoder
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError
from env_service.client import AsyncEnvClient, RetryPolicy
from task_manager.actions import format_of
from task_manager.background import round_files
from task_manager.explore import Explorer, make_strategy
from task_manager.focus import by_seed, seeds_in_turn
from task_manager.graders.environment import CHECK_KEY
from task_manager.journal import PipelineJournal, PipelinePlan, fingerprint
from task_manager.known_queries import KnownQueries, held_out_queries
from task_manager.pipeline import QuestioningFailed, TaskPipeline, evaluator_for
from task_manager.profile import EnvProfile, profile_for
from task_manager.settings import QuestioningConfiguration, TaskManagerSettings, file_of
from task_manager.synthesize import Synthesiser
from task_manager.tasks import read_objectives, write_objectives
from task_manager.verify import Verifier

if TYPE_CHECKING:
    from agentevolver.llm.client import LLM

logger = logging.getLogger(__name__)

HICCUP_S = 10.0


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """A pipeline with its plan and journal, ready to run."""

    configuration: QuestioningConfiguration
    plan: PipelinePlan
    journal: PipelineJournal
    pipeline: TaskPipeline

    @property
    def target(self) -> Path:
        return self.configuration.task_manager.train_data_path

    async def make_tasks(self, on_progress: Callable[[int, int, int], None] | None = None) -> list[Task]:
        """Run the pipeline and write its tasks; raises QuestioningFailed, also if no task was kept."""
        try:
            await self.pipeline.run(on_progress)
        finally:
            # Also after a failure or a cancellation.
            tasks = self.pipeline.tasks
            if tasks:
                write_objectives(self.target, tasks)
        if not tasks and self.pipeline.budget_spent:
            raise QuestioningFailed("the budget was spent before a task was kept: raise llm.budget")
        if not tasks and (failures := self.pipeline.failures):
            raise QuestioningFailed(
                f"no task was kept and {len(failures)} explorations failed; the last one: {failures[-1]}"
            )
        if not tasks:
            raise QuestioningFailed(
                f"no task was kept; `python -m task_manager stats` tells where the {len(self.plan.seeds)} seeds went"
            )
        return tasks


@asynccontextmanager
async def open_run(
    configuration: QuestioningConfiguration,
    llm: LLM,
    *,
    encoder: Encoder | None = None,
    profile: EnvProfile | None = None,
) -> AsyncIterator[PipelineRun]:
    """Open journal and connections, list seeds and evaluation tasks; close everything at the end.

    Raises ConfigError, JournalError, EnvServiceError.
    """
    settings, service, data = configuration.task_manager, configuration.env_service, configuration.data
    profile = profile or profile_for(service.env_type, settings.env_profile)
    # The pipeline waits for a service that is down; the client only retries for a few seconds.
    retry = RetryPolicy(budget_s=min(HICCUP_S, settings.unavailable_timeout_s))
    client = AsyncEnvClient(service.env_url, timeout_s=service.timeout_s, retry=retry)
    cache: CachedEncoder | None = None
    journal = PipelineJournal(settings.store_path)
    try:
        if encoder is None:
            encoder = cache = make_encoder(settings.deduplication.encoder, settings.store_path / "embeddings.sqlite")
        seeds = await client.get_env_profile(service.env_type, data.train_split, data.train_filter)
        if not seeds:
            raise ConfigError(
                f"data.train_split: the environment {service.env_type!r} lists no task in {data.train_split!r}"
            )
        held_out = await held_out_queries(
            client,
            service.env_type,
            data.val_splits,
            journal,
            list_params=data.val_filter,
            env_params=service.env_params,
        )
        worlds = seeds_in_turn(settings.focus) or seeds_of_round(seeds, settings)
        yield _assemble(configuration, llm, client, journal, profile, worlds, held_out, encoder)
    finally:
        journal.close()
        if cache is not None:
            cache.close()
        await client.close()


def seeds_of_round(seeds: Sequence[str], settings: TaskManagerSettings) -> tuple[str, ...]:
    """Return a round's seed tasks: the next `max_seed_tasks`, wrapping around."""
    count = min(settings.max_seed_tasks or len(seeds), len(seeds))
    start = settings.round * count % len(seeds)
    return tuple([*seeds[start:], *seeds[:start]][:count])


def _assemble(
    configuration: QuestioningConfiguration,
    llm: LLM,
    client: AsyncEnvClient,
    journal: PipelineJournal,
    profile: EnvProfile,
    seeds: tuple[str, ...],
    held_out: Sequence[str],
    encoder: Encoder,
) -> PipelineRun:
    settings, service = configuration.task_manager, configuration.env_service
    known = [task for path in settings.known_data_paths for task in _tasks_of(path, service.env_type)]
    plan = PipelinePlan.of(
        settings,
        env_type=service.env_type,
        env_params=service.env_params,
        profile=profile,
        seeds=seeds,
        models=configuration.models,
        evaluation=tuple(held_out),
        known=tuple(task.task_id for task in known),
    )
    key = fingerprint(plan.to_dict())
    if journal.get("plan", key) is None:
        journal.put("plan", key, plan.to_dict())
    fmt = format_of(service.env_type, settings.action_format)
    strategy = make_strategy(settings.strategy, fmt, settings.strategy_args)
    reply_format, max_chars = settings.reply_format, settings.max_observation_chars
    focus = by_seed(settings.focus)
    explorer = Explorer(
        client,
        llm,
        fmt,
        profile,
        strategy,
        settings.strategy_args,
        reply_format=reply_format,
        max_chars=max_chars,
        focus=focus,
    )
    pipeline = TaskPipeline(
        plan,
        settings,
        journal,
        client,
        explorer=explorer,
        synthesiser=Synthesiser(llm, fmt, profile, settings.synthesis, max_chars=max_chars, focus=focus),
        verifier=Verifier(client, llm, fmt, settings.verification, reply_format=reply_format, max_chars=max_chars),
        strategy=strategy,
        fmt=fmt,
        pool=KnownQueries(settings.deduplication, encoder, held_out),
        env_params=service.env_params,
        known=known,
    )
    return PipelineRun(configuration, plan, journal, pipeline)


def existing_tasks(configuration: QuestioningConfiguration, plan: PipelinePlan | None = None) -> list[Task]:
    """Read the configuration's synthetic tasks, if there are any.

    Raises ConfigError for tasks of another environment and, if `plan` is given, of another configuration.
    """
    path = configuration.task_manager.train_data_path
    if not path.exists():
        return []
    tasks = _tasks_of(path, configuration.env_service.env_type)
    for task in tasks if plan is not None else ():
        origin = task.metadata.get("origin", {}).get("run")
        if plan is not None and origin is not None and origin != plan.run:
            raise ConfigError(
                f"{path}: its tasks were made by another configuration (run {origin}, now {plan.run}): set another path"
            )
    return tasks


def _tasks_of(path: Path, env_type: str) -> list[Task]:
    try:
        tasks = read_objectives(path)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    for task in tasks:
        if task.env_type != env_type:
            raise ConfigError(f"{path}: its tasks are for {task.env_type!r}, not {env_type!r}: set another path")
    return tasks


def record_path(experiment_dir: Path, env_type: str | None = None) -> Path:
    path = experiment_dir / "tasks" / "questioning.json"
    return path if env_type is None else file_of(path, env_type)


def funnel_metrics(experiment_dir: Path, env_types: Sequence[str | None] = (None,)) -> dict[str, float]:
    """Return the recorded `questioning/...` metrics, under each environment's name if there are several."""
    paths = {env_type: record_path(experiment_dir, env_type) for env_type in env_types}
    return {
        metric if env_type is None else f"{metric}/{env_type}": float(value)
        for env_type, path in paths.items()
        if path.exists()
        for metric, value in json.loads(path.read_text(encoding="utf-8"))["metrics"].items()
    }


def synthetic_tasks_of(configurations: Iterable[QuestioningConfiguration]) -> tuple[list[Task], list[Task]]:
    found = [synthetic_tasks(one.task_manager) for one in configurations]
    return [task for first, _ in found for task in first], [task for _, later in found for task in later]


def synthetic_tasks(section: TaskManagerSettings) -> tuple[list[Task], list[Task]]:
    """Return the tasks of the first file and those of later rounds, with the configured graders.

    Raises ConfigError for an unreadable file.
    """
    path = section.train_data_path
    try:
        first = read_objectives(path) if path.exists() else []
        later = [task for file in round_files(path) for task in read_objectives(file)]
    except (OSError, ValueError) as error:
        raise ConfigError(f"task_manager.train_data_path: {error}") from error
    return [graded_by(section, task) for task in first], [graded_by(section, task) for task in later]


def graded_by(section: TaskManagerSettings, task: Task) -> Task:
    """Return a synthetic task with the configured grader instead of its own."""
    check = task.metadata.get(CHECK_KEY)
    evaluator = evaluator_for(section.grader, check)
    if evaluator in ("state", "state-llm") and check is None:
        raise ConfigError(
            f"task_manager.grader.synthetic_grader = {evaluator}, but the task {task.task_id!r} has no state check: "
            "write auto, or a judge's name"
        )
    return replace(task, evaluator=evaluator, open_query=True)

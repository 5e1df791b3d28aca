"""The experience pool of a training run: started, filled, fed with rollouts, saved and closed.

Only a deterministic run waits for the summariser (`settle`). The warm start and the scouts run once; their tasks are in
`tasks/warm_start.jsonl` and `tasks/scout.jsonl`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agentevolver.config.schema import Settings
from agentevolver.trainer.monitor.measured import Measured
from agentevolver.trainer.parts import TrainerPart
from agentevolver.types import Task, Trajectory
from agentevolver.utils.errors import ConfigError, TrainingFailed, last_line
from agentevolver.utils.files import read_jsonl, write_json, write_jsonl
from env_service.client import AsyncEnvClient, EnvRequestError
from experience_manager.errors import ExperienceError
from task_manager.tasks import environment_tasks, write_tasks

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
# Interval of retries while a lost actor restarts.
RETRY_S = 0.5
# Wait at the end of a step for its distillation, which began seconds before.
COLLECT_TIMEOUT_S = 2.0
# The same in a deterministic run, whose metrics must not depend on timing.
COLLECT_WHOLE_S = 120.0
CLOSE_TIMEOUT_S = 60.0
# Tasks that are rolled out and distilled at a time: a killed run repeats at most this many.
CHUNK = 32
# Constant, so that every start of a run draws the same tasks.
SEED = 0


# (tasks, rollouts of each task) -> trajectories, without guidance.
RollOut = Callable[[Sequence[Task], int], list[Trajectory]]


class RunExperience(TrainerPart):
    """The experience manager's Ray actor in a training run.

    The pool never learns from the tasks `held_out`. A group's rollouts span at most `steps_kept` steps.
    """

    def __init__(self, settings: Settings, held_out: Iterable[Task], steps_kept: int = 1) -> None:
        # Imported here: runs without experience need no index.
        from experience_manager.actor import start_actor

        section, self._directory = settings.exp_manager, settings.experiment_dir.resolve()
        self._rollouts = section.init_rollouts
        self._several = settings.env_service.is_mixture
        ids: dict[str, list[str]] = {env_type: [] for env_type in settings.env_service.env_types}
        for task in held_out:
            ids[task.env_type].append(task.task_id)
        self._waits = settings.trainer.deterministic
        # Only a private pool is restored with a checkpoint: others write into a shared one.
        self._owns_pool = section.backend == "embedded" and section.store is None
        self._pending: list[Any] = []
        self._early: dict[str, float] = {}
        self._actor = start_actor(
            section.model_copy(update={"store": section.store.resolve()}) if section.store is not None else section,
            settings.llm.model_copy(update={"ledger": settings.usage_ledger.resolve()}),
            self._directory,
            held_out=[task_id for own in ids.values() for task_id in own],
            seed=settings.data.seed,
            apart=ids if self._several else None,
            steps_kept=steps_kept,
            # The experiment's folder is on this node.
            scheduling_strategy=NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False),
        )

    @property
    def actors(self) -> tuple[Any, ...]:
        """The Ray actors, for the watchdog."""
        return (self._actor,)

    def wait(self) -> None:
        """Wait until the pool is open. Raises TrainingFailed if it does not open."""
        try:
            ray.get(self._actor.__ray_ready__.remote(), timeout=START_TIMEOUT_S)
        except RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise TrainingFailed(f"the experience manager could not be started: {lines[-1]}") from error

    def settle(self) -> None:
        """In a deterministic run, wait until all rollouts handed over are in the pool."""
        if self._waits:
            self._early |= self.collect()
            self._done(self._actor.settled.remote())

    @property
    def beginning(self) -> Path:
        """Folder of the pool's state before the first step."""
        return self._directory / "experience" / "begin"

    def save(self, folder: Path, step: int = 0) -> None:
        """In a deterministic run, save the pool into a checkpoint. Raises TrainingFailed if that fails."""
        if self._waits and self._owns_pool:
            folder.mkdir(parents=True, exist_ok=True)
            self.settle()
            try:
                self._surely(lambda: self._actor.save.remote(folder.resolve()))
            except RayError as error:
                raise TrainingFailed(
                    f"the experience pool could not be written into {folder}: {_reason(error)}"
                ) from error

    def restore_pool(self, folder: Path) -> bool:
        """In a deterministic run, restore the pool from `folder`; return whether a saved pool was there.

        A later state of the pool is moved to a file named in a warning. Raises TrainingFailed if restoring fails.
        """
        restored = self._waits and self._owns_pool and self._set_back(folder)
        # A run that starts over credits its pool from the first step again.
        if folder == self.beginning:
            self.wait()
            self._done(self._actor.start_over.remote())
        return restored

    def _set_back(self, folder: Path) -> bool:
        self.wait()
        asides = (self._directory / f"experience.superseded-{number}.sqlite" for number in count(1))
        aside = next(path for path in asides if not path.exists())
        try:
            restored = bool(ray.get(self._actor.restore.remote(folder.resolve(), aside)))
        except RayError as error:
            raise TrainingFailed(
                f"the experience pool could not be restored from {folder}: {_reason(error)}"
            ) from error
        if aside.exists():
            logger.warning("the experience pool was restored from %s; its later state is in %s", folder, aside)
        return restored

    def _filled(self, name: str, done: Sequence[str]) -> Path:
        return self._directory / "experience" / f"{name}_{len(done)}"

    def after_rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        self._pending.append(self._actor.record_step.remote(step, list(trajectories)))
        return {}

    def after_update(self, step: int, metrics: dict[str, Any]) -> Mapping[str, float]:
        return self.collect()

    def after_validation(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        return self.collect()

    def collect(self) -> dict[str, float]:
        """Return the metrics that are ready: those of rollouts handed over, and once those of the warm start."""
        metrics, self._early = self._early, {}
        done, self._pending = (
            ray.wait(
                self._pending,
                num_returns=len(self._pending),
                timeout=COLLECT_WHOLE_S if self._waits else COLLECT_TIMEOUT_S,
            )
            if self._pending
            else ([], [])
        )
        for reference in done:
            metrics |= self._result(reference)
        if self._pending:
            metrics["exp_manager/late_records"] = float(len(self._pending))
        return metrics

    def fill(
        self,
        name: str,
        tasks: Sequence[Task],
        roll_out: RollOut,
        tell: Callable[[int, int], None],
        *,
        step: int | None = None,
    ) -> None:
        """Roll tasks out and distil the trajectories. Finished tasks are recorded, so that no task is done twice.

        `name` appears in files and metrics. `tell` gets the numbers of finished and of all tasks before each chunk.
        With a `step` the filling is repeated per step and restores its pool; with None it runs once.
        """
        key = name if step is None else f"{name}_{step}"
        path = self._directory / "experience" / f"{key}.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        done: list[str] = known.get("tasks", [])
        # File of trajectories -> its tasks that were rolled out but not distilled completely.
        owed: dict[str, list[str]] = known.get("undistilled", {})
        counts: dict[str, int] = {what: known.get(what, 0) for what in ("graded", "successes", "acted")}
        left = [task for task in tasks if self._known_as(task) not in set(done)]
        # The pool goes back to the last whole chunk: the interrupted chunk is distilled again from its start.
        if (left or step is not None) and not self.restore_pool(self._filled(key, done)) and left:
            self.save(self._filled(key, done))
        for start in range(0, len(left), CHUNK):
            tell(len(done), len(tasks))
            chunk = left[start : start + CHUNK]
            trajectories = roll_out(chunk, self._rollouts)
            rolled = f"{key}_{len(done)}.jsonl"
            write_jsonl(self._directory / "trajectories" / rolled, (one.to_dict() for one in trajectories))
            metrics, undistilled = self._distilled(trajectories)
            before = self._filled(key, done)
            done += [self._known_as(task) for task in chunk]
            owed |= {rolled: undistilled} if undistilled else {}
            self.save(self._filled(key, done))
            outcomes = [one.outcome for one in trajectories if one.outcome is not None]
            counts["graded"] += len(outcomes)
            counts["successes"] += sum(outcome.success for outcome in outcomes)
            counts["acted"] += Measured.of(trajectories).acted
            if counts["graded"] and counts["acted"]:
                metrics[f"exp_manager/{name}/success"] = counts["successes"] / counts["graded"]
            self._early |= metrics
            write_json(path, {"tasks": done, "metrics": metrics, "undistilled": owed, **counts})
            shutil.rmtree(before, ignore_errors=True)
        if owed:
            owed = self._try_again(name, owed)
            self.save(self._filled(key, done))
            write_json(path, {"tasks": done, "metrics": self._early, "undistilled": owed, **counts})

    def _known_as(self, task: Task) -> str:
        return f"{task.env_type}/{task.task_id}" if self._several else task.task_id

    def _try_again(self, name: str, owed: dict[str, list[str]]) -> dict[str, list[str]]:
        """Distil again the trajectories (by file, then task) whose model calls failed. Return those that failed once
        more."""
        still: dict[str, list[str]] = {}
        for rolled, tasks in owed.items():
            trajectories = [
                trajectory
                for trajectory in map(Trajectory.from_dict, read_jsonl(self._directory / "trajectories" / rolled))
                if self._known_as(trajectory.task) in set(tasks)
            ]
            metrics, undistilled = self._distilled(trajectories)
            self._early |= metrics
            still |= {rolled: undistilled} if undistilled else {}
        count = sum(map(len, still.values()))
        self._early[f"exp_manager/{name}/undistilled"] = float(count)
        if count:
            files = ", ".join(still)
            logger.warning(
                "%s: rollouts of %d tasks were not distilled in full, twice (%s in trajectories/): see that the "
                "summariser answers, and "
                "run `python -m experience_manager distill` on them with this run's --config",
                *(name, count, files),
            )
        return still

    def _distilled(self, trajectories: Sequence[Trajectory]) -> tuple[dict[str, float], list[str]]:
        """Return the metrics, and the tasks that were not distilled completely."""
        try:
            filling = ray.get(self._actor.warm_start.remote(list(trajectories)))
        except RayError as error:
            return self._lost(error), list(dict.fromkeys(self._known_as(one.task) for one in trajectories))
        lost = list(filling.undistilled)
        if self._several:
            lost = [self._known_as(one.task) for one in trajectories if one.task.task_id in set(lost)]
        return dict(filling.metrics), list(dict.fromkeys(lost))

    def finish(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Let the distillation finish within `timeout_s` and close the pool. Raises nothing."""
        try:
            ray.get(self._actor.aclose.remote(timeout_s), timeout=timeout_s + COLLECT_TIMEOUT_S)
        except RayError as error:
            logger.warning("the experience pool was not closed in time: %s", type(error).__name__)

    def _surely(self, call: Callable[[], Any]) -> Any:
        """Call until the result arrives; retry up to `START_TIMEOUT_S` while Ray restarts the actor. Raises
        RayError."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return ray.get(call())
            except RayActorError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_S)

    def _done(self, reference: Any) -> None:
        """Wait for a call of the actor. A failure is logged, and training continues."""
        try:
            ray.get(reference)
        except RayError as error:
            logger.warning("the experience manager failed: %s", " ".join(str(error).split())[-400:])

    def _result(self, reference: Any) -> dict[str, float]:
        try:
            metrics: dict[str, float] = ray.get(reference)
        except RayError as error:
            return self._lost(error)
        return metrics

    @staticmethod
    def _lost(error: RayError) -> dict[str, float]:
        # Training continues: rollouts are unguided and record the reason, and the metric shows the error.
        logger.warning("the experience manager failed: %s", " ".join(str(error).split())[-400:])
        return {"exp_manager/errors": 1.0}


def _reason(error: RayError) -> str:
    return last_line(getattr(error, "cause", None) or error)


def warm_start_path(settings: Settings) -> Path:
    return settings.experiment_dir / "tasks" / "warm_start.jsonl"


def scout_path(settings: Settings) -> Path:
    return settings.experiment_dir / "tasks" / "scout.jsonl"


def prepare(settings: Settings, tasks: Sequence[Task]) -> None:
    """Check the pool and choose the tasks of the warm start and of the scouts. `tasks` are all tasks of the run.

    Raises:
        ConfigError: the scouts' split cannot be listed, or has no task that is unused so far.
        TrainingFailed: the pool's file cannot be used.
        EnvServiceError: the service fails.
    """
    section = settings.exp_manager
    if section.backend == "embedded":
        try:
            asyncio.run(_look_at_pool(settings))
        except ExperienceError as error:
            raise TrainingFailed(f"the experience pool cannot be used: {error}") from error
    trained = [task for task in tasks if not task.is_validation]
    if section.init_exp_before_training and not warm_start_path(settings).exists():
        write_tasks(warm_start_path(settings), _drawn(trained, section.init_tasks))
    if section.scout.split is not None and not scout_path(settings).exists():
        known = {(task.env_type, task.task_id) for task in tasks}
        listed = asyncio.run(_list_split(settings, section.scout.split))
        unseen = [task for task in listed if (task.env_type, task.task_id) not in known]
        if not unseen:
            raise ConfigError(
                f"exp_manager.scout.split = {section.scout.split}: all of its {len(listed)} tasks are already "
                "used for training or validation; let exp_manager.scout.filter list more"
            )
        write_tasks(scout_path(settings), [task.scouting() for task in unseen])


def _drawn(tasks: Sequence[Task], count: int | None) -> list[Task]:
    chosen = tasks if count is None or count >= len(tasks) else random.Random(SEED).sample(list(tasks), count)
    return [task.scouting() for task in chosen]


async def _look_at_pool(settings: Settings) -> None:
    # Imported here: the trainer imports this module too, and needs no index.
    from experience_manager.backend import EmbeddedBackend

    backend = EmbeddedBackend.open(settings.exp_manager, settings.experiment_dir)
    await backend.aclose()


async def _list_split(settings: Settings, split: str) -> list[Task]:
    service = settings.env_service
    async with AsyncEnvClient(service.env_url, timeout_s=service.timeout_s) as client:
        try:
            return [
                task
                for one in settings.environments
                if one.val_splits
                for task in await environment_tasks(
                    client, one.env_type, split, params=settings.exp_manager.scout.filter
                )
            ]
        except (ValueError, EnvRequestError) as error:
            raise ConfigError(f"exp_manager.scout.split = {split} cannot be listed: {error}") from error

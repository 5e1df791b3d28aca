"""The experience manager of a training run: its pool checked, started, filled,
fed with rollouts, asked for metrics, closed.

A step's rollouts are handed over and the answer is fetched when the step ends, or with the next one. What a rollout may
be told does not depend on how fast the summariser is: where the run is to be deterministic, rollouts begin when what
was handed over before is in the pool (`settle`); elsewhere nothing makes a step wait.

What happens before training (the warm start) and before the last validation (the scouts) may wait, and is not done
again by a run that goes on: its tasks stand in `tasks/warm_start.jsonl` and `tasks/scout.jsonl` of the run.
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
from agentevolver.trainer.parts import TrainerPart
from agentevolver.types import Task, Trajectory
from agentevolver.utils.errors import ConfigError, TrainingFailed, last_line
from agentevolver.utils.files import read_jsonl, write_json, write_jsonl
from env_service.client import AsyncEnvClient, EnvRequestError
from experience_manager.errors import ExperienceError
from task_manager.tasks import environment_tasks, write_tasks

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
# How often a lost actor is asked whether it is back.
RETRY_S = 0.5
# For what a step's rollouts came to, when the step ends: they were handed over seconds before.
COLLECT_TIMEOUT_S = 2.0
# And where the metrics are not to depend on it: what is waited for then is counters in a file.
COLLECT_WHOLE_S = 120.0
CLOSE_TIMEOUT_S = 60.0
# Tasks that are rolled out and distilled before the next ones: what a run that is killed has to repeat at most.
CHUNK = 32
# Draws of tasks are the same in every start.
SEED = 0


# Rolls tasks out without guidance, so many times each, and returns the trajectories.
RollOut = Callable[[Sequence[Task], int], list[Trajectory]]


class RunExperience(TrainerPart):
    """Experience of a run: the experience manager's actor, started and spoken to.

    Args:
        settings: the run's.
        held_out: the evaluation's tasks, which are never learned from.
        steps_kept: for how many steps a group may be rolled out.
    """

    def __init__(self, settings: Settings, held_out: Iterable[Task], steps_kept: int = 1) -> None:
        # Not above: runs without experience need no index.
        from experience_manager.actor import start_actor

        section, self._directory = settings.exp_manager, settings.experiment_dir.resolve()
        self._rollouts = section.init_rollouts
        self._several = settings.env_service.is_mixture
        ids: dict[str, list[str]] = {env_type: [] for env_type in settings.env_service.env_types}
        for task in held_out:
            ids[task.env_type].append(task.task_id)
        self._waits = settings.trainer.deterministic
        # A pool of the run's own goes back with a checkpoint; one that others write into does not.
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
        """The actor, to be asked what it waits for."""
        return (self._actor,)

    def wait(self) -> None:
        """Wait until the pool is open; raises TrainingFailed if it cannot be."""
        try:
            ray.get(self._actor.__ray_ready__.remote(), timeout=START_TIMEOUT_S)
        except RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise TrainingFailed(f"the experience manager could not be started: {lines[-1]}") from error

    def settle(self) -> None:
        """Wait until everything that was handed over is in the pool, where the run is to be deterministic."""
        if self._waits:
            self._early |= self.collect()
            self._done(self._actor.settled.remote())

    @property
    def beginning(self) -> Path:
        """Where the pool lies as it was before the first step."""
        return self._directory / "experience" / "begin"

    def save(self, folder: Path, step: int = 0) -> None:
        """Write the pool and what is known of it into a checkpoint, where the run is to be deterministic.

        Raises TrainingFailed: what would go on from there would not be the same run.
        """
        if self._waits and self._owns_pool:
            folder.mkdir(parents=True, exist_ok=True)
            self.settle()
            try:
                self._surely(lambda: self._actor.save.remote(str(folder.resolve())))
            except RayError as error:
                raise TrainingFailed(
                    f"the experience pool could not be written into {folder}: {_reason(error)}"
                ) from error

    def restore_pool(self, folder: Path) -> bool:
        """Make the pool what it was when it was saved there, where the run is to be deterministic.

        A later state, edits of a person among it, is kept in a file of its own, which a warning names. Returns whether
        it was saved there. A run that begins at `beginning` starts over: whatever its pool, it is credited with its
        steps from the first one on again.

        Raises TrainingFailed: it was saved there, and something cannot be read or written.
        """
        restored = self._waits and self._owns_pool and self._set_back(folder)
        if folder == self.beginning:
            self.wait()
            self._done(self._actor.start_over.remote())
        return restored

    def _set_back(self, folder: Path) -> bool:
        self.wait()
        asides = (self._directory / f"experience.superseded-{number}.sqlite" for number in count(1))
        aside = next(path for path in asides if not path.exists())
        try:
            restored = bool(ray.get(self._actor.restore.remote(str(folder.resolve()), str(aside))))
        except RayError as error:
            raise TrainingFailed(
                f"the experience pool could not be set back to what it was in {folder}: {_reason(error)}"
            ) from error
        if aside.exists():
            logger.warning(
                "the experience pool was set back to what it was in %s; its later state is in %s", folder, aside
            )
        return restored

    def _filled(self, name: str, done: Sequence[str]) -> Path:
        return self._directory / "experience" / f"{name}_{len(done)}"

    def after_rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """Hand over the rollouts of a training step."""
        self._pending.append(self._actor.record_step.remote(step, list(trajectories)))
        return {}

    def after_update(self, step: int, metrics: dict[str, Any]) -> Mapping[str, float]:
        return self.collect()

    def after_validation(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        return self.collect()

    def collect(self) -> dict[str, float]:
        """Return what is known by now of the rollouts that were handed over,
        and once what happened before the first step."""
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
        """Roll tasks out, distil what happened, and remember which ones it was, so that it is done once.

        Args:
            name: of this filling, also in its files and metrics.
            tasks: what to roll out.
            roll_out: how.
            tell: told after every few tasks how many are done, and of how many.
            step: the one that it is done for, each time anew; then the pool is what it came to also where it was done
                before, by a run that went on from an earlier checkpoint since. None: once in all.
        """
        key = name if step is None else f"{name}_{step}"
        path = self._directory / "experience" / f"{key}.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        done: list[str] = known.get("tasks", [])
        # By the file of their trajectories: tasks that were rolled out, and not distilled in full.
        owed: dict[str, list[str]] = known.get("undistilled", {})
        counts: dict[str, int] = {what: known.get(what, 0) for what in ("graded", "successes")}
        left = [task for task in tasks if self._known_as(task) not in set(done)]
        # What a chunk taught that was cut off is taught again.
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
            if counts["graded"]:
                metrics[f"exp_manager/{name}/success"] = counts["successes"] / counts["graded"]
            self._early |= metrics
            write_json(path, {"tasks": done, "metrics": metrics, "undistilled": owed, **counts})
            shutil.rmtree(before, ignore_errors=True)
        if owed:
            owed = self._try_again(name, owed)
            self.save(self._filled(key, done))
            write_json(path, {"tasks": done, "metrics": self._early, "undistilled": owed, **counts})

    def _known_as(self, task: Task) -> str:
        """Return what a task is called in the files of a filling: its id, of several environments with its own."""
        return f"{task.env_type}/{task.task_id}" if self._several else task.task_id

    def _try_again(self, name: str, owed: dict[str, list[str]]) -> dict[str, list[str]]:
        """Distil rollouts once more of which calls were lost; returns what is still owed, and counts its tasks."""
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
        """Return the metrics of distilling rollouts, and the tasks of which it did not succeed in full."""
        try:
            filling = ray.get(self._actor.warm_start.remote(list(trajectories)))
        except RayError as error:
            return self._lost(error), list(dict.fromkeys(self._known_as(one.task) for one in trajectories))
        lost = list(filling.undistilled)
        if self._several:
            lost = [self._known_as(one.task) for one in trajectories if one.task.task_id in set(lost)]
        return dict(filling.metrics), list(dict.fromkeys(lost))

    def finish(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Let the distillation under way finish in time, and close the pool. Raises nothing."""
        try:
            ray.get(self._actor.close.remote(timeout_s), timeout=timeout_s + COLLECT_TIMEOUT_S)
        except RayError as error:
            logger.warning("the experience pool was not closed in time: %s", type(error).__name__)

    def _surely(self, call: Callable[[], Any]) -> Any:
        """Return what a call comes to; it is made again where the actor's process was lost,
        until Ray has started it again.

        Raises RayError: what the call raised, or the actor did not come back in `START_TIMEOUT_S`.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return ray.get(call())
            except RayActorError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_S)

    def _done(self, reference: Any) -> None:
        """Wait for a call; training goes on without it if it fails."""
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
        # Training goes on without it: rollouts are unguided and say why, the metric shows that something is wrong.
        logger.warning("the experience manager failed: %s", " ".join(str(error).split())[-400:])
        return {"exp_manager/errors": 1.0}


def _reason(error: RayError) -> str:
    """Return in one line what the actor's method raised, or what became of the actor."""
    return last_line(getattr(error, "cause", None) or error)


def warm_start_path(settings: Settings) -> Path:
    """Return where the tasks of the warm start stand."""
    return settings.experiment_dir / "tasks" / "warm_start.jsonl"


def scout_path(settings: Settings) -> Path:
    """Return where the scouts' tasks stand."""
    return settings.experiment_dir / "tasks" / "scout.jsonl"


def prepare(settings: Settings, tasks: Sequence[Task]) -> None:
    """Look at the pool and choose the tasks that will fill it.

    Args:
        settings: the run's.
        tasks: all that it trains on or validates on.

    Raises:
        ConfigError: the scouts' split cannot be listed, or holds nothing that is not validated on.
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
                f"exp_manager.scout.split = {section.scout.split}: all of its {len(listed)} tasks are trained on or "
                "validated on; let "
                "exp_manager.scout.filter list more"
            )
        write_tasks(scout_path(settings), [task.scouting() for task in unseen])


def _drawn(tasks: Sequence[Task], count: int | None) -> list[Task]:
    """Return so many of the tasks, drawn at random, marked as scouts."""
    chosen = tasks if count is None or count >= len(tasks) else random.Random(SEED).sample(list(tasks), count)
    return [task.scouting() for task in chosen]


async def _look_at_pool(settings: Settings) -> None:
    # Not above: the trainer reads this module too, and has no use for an index.
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

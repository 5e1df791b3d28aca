"""Rounds of propose, pool, label, solve, evaluate; a manifest records how far they are.

All files of a round carry its number, and existing files are not made again: a run that is killed anywhere and started
again ends with the same manifest. Round 0 is the evaluation of the base policy.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentevolver.config.schema import Settings
from agentevolver.recipes.agent0 import stages
from agentevolver.recipes.agent0.manifest import (
    DONE,
    EVALUATE,
    LABEL,
    POOL,
    PROPOSE,
    RUNNING,
    SOLVE,
    Manifest,
)
from agentevolver.recipes.agent0.overlays import GRADER, proposer_overlay, solver_overlay
from agentevolver.recipes.agent0.play import Player
from agentevolver.recipes.agent0.pool import Labeller, TaskPool, draws_of, replayed, tasks_of
from agentevolver.recipes.agent0.report import best_of, line_of, metrics_of, success_of
from agentevolver.recipes.agent0.settings import PROPOSE_ENV, settings_of
from agentevolver.recipes.agent0.trainings import RoundTraining, TrainFunction, TrainingResult, without_optimizer
from agentevolver.trainer.monitor.log import METRICS, Status, last_step
from agentevolver.types import Task
from agentevolver.utils.files import append_jsonl
from agentevolver.utils.seeds import derived

logger = logging.getLogger(__name__)

BEST = "best"


@dataclass(frozen=True)
class StageResources:
    """What the stages use.

    `labeller` makes a labeller for a checkpoint of the executor. `val_tasks` are the tasks of the evaluation, with
    `questions` as their texts.
    """

    train: TrainFunction
    player: Player
    seeds: stages.Seeds
    labeller: Callable[[str], Labeller]
    val_tasks: Sequence[Task]
    questions: Sequence[str]


@dataclass
class _Policies:
    proposer: str
    executor: str


class Driver:
    def __init__(
        self,
        config: Mapping[str, Any],
        settings: Settings,
        manifest: Manifest,
        parts: StageResources,
        show: Callable[[str], None] = print,
    ) -> None:
        self._config = config
        self._settings = settings
        self._section = settings_of(settings)
        self._manifest = manifest
        self._parts = parts
        self._show = show
        self._folder = manifest.experiment
        self._status = Status(self._folder)
        self._world = settings.environments[0].env_type
        self._split = settings.environments[0].val_splits[0]

    async def run(self) -> None:
        """Run to the last round; raises ConfigError, TrainingFailed or PlayFailed."""
        manifest = self._manifest
        manifest.content["state"] = RUNNING
        manifest.save()
        policies = await self._base()
        for number in range(1, self._section.rounds + 1):
            await self._round(number, policies)
        manifest.content["state"] = DONE
        manifest.save()
        self._status.set("finished", rounds=self._section.rounds)
        self._tell_end()

    async def _base(self) -> _Policies:
        model = str(self._config["actor_rollout_ref"]["model"]["path"])
        policies = _Policies(self._section.proposer.path or model, model)
        if not self._manifest.is_over(0, EVALUATE):
            await self._evaluate(0, policies)
        self._manifest.end_round(0, policies.proposer, policies.executor)
        self._told(0)
        return policies

    async def _round(self, number: int, policies: _Policies) -> None:
        await self._propose(number, policies)
        pool = await self._pool_and_label(number, policies)
        await self._solve(number, policies, pool)
        await self._evaluate(number, policies)
        self._manifest.end_round(number, policies.proposer, policies.executor)
        self._told(number)

    async def _propose(self, number: int, policies: _Policies) -> None:
        section, manifest = self._section.proposer, self._manifest
        if not manifest.is_over(number, PROPOSE):
            if section.trained:
                await self._train_proposer(number, policies)
            else:
                manifest.skip(number, PROPOSE, "proposer.trained = false")
        if made := manifest.stage(number, PROPOSE).get("checkpoint"):
            policies.proposer = manifest.absolute(made)

    async def _train_proposer(self, number: int, policies: _Policies) -> None:
        section, folder = self._section.proposer, self._of(number) / "proposer"
        count = section.steps * section.batch_size
        seeds = await self._parts.seeds(number, PROPOSE, count)
        executor = _usable(policies.executor)
        overlay = proposer_overlay(
            self._config,
            self._settings,
            folder,
            tasks=len(seeds),
            start=_usable(policies.proposer),
            executor=executor,
        )
        tasks = [Task(seed, PROPOSE_ENV, evaluator=GRADER, metadata={"split": "train"}) for seed in seeds]
        watched = [Task(seed, PROPOSE_ENV, metadata={"split": "train", "validation": True}) for seed in seeds[:1]]
        episodes = count * section.n
        await self._train(
            number,
            PROPOSE,
            RoundTraining(f"round {number} proposer", folder, overlay, tasks, watched, section.steps),
            policies.proposer,
            {"steps": section.steps, "proposals": episodes, "episodes": episodes * self._section.executor.k},
        )

    async def _pool_and_label(self, number: int, policies: _Policies) -> TaskPool:
        section, manifest = self._section, self._manifest
        pool = TaskPool(self._of(number), number, section.pool, self._known(number))
        if manifest.is_over(number, LABEL):
            return pool
        draws = draws_of(number, await self._parts.seeds(number, POOL, section.draws))
        player, own = self._parts.player, manifest.relative
        proposer, labeller = _usable(policies.proposer), self._parts.labeller(_usable(policies.executor))
        size = max(stages.AT_ONCE, section.pool // 4)
        manifest.begin(number, POOL)
        manifest.begin(number, LABEL)
        for first in range(0, len(draws), size):
            batch = draws[first : first + size]
            with manifest.timed(number, POOL):
                told = self._progress(number, POOL)
                await stages.draw(pool, batch, player, proposer, own(policies.proposer), told)
            with manifest.timed(number, LABEL):
                k = section.executor.label_k
                await stages.label(pool, labeller, k, own(policies.executor), self._progress(number, LABEL))
            if pool.is_full():
                break
        if not manifest.is_over(number, POOL):
            drawn = stages.pool_counts(pool)
            manifest.finish(number, POOL, counts={key: drawn[key] for key in ("drawn", "refused")})
        pool.close()
        manifest.finish(number, LABEL, counts=stages.pool_counts(pool), metrics=stages.pool_metrics(pool))
        return pool

    async def _solve(self, number: int, policies: _Policies, pool: TaskPool) -> None:
        section, manifest = self._section, self._manifest
        if not manifest.is_over(number, SOLVE):
            kept = pool.kept()
            if len(kept) < section.min_pool:
                manifest.skip(number, SOLVE, f"{len(kept)} tasks were kept, min_pool is {section.min_pool}")
            else:
                await self._train_executor(number, policies, kept)
        if made := manifest.stage(number, SOLVE).get("checkpoint"):
            policies.executor = manifest.absolute(made)

    async def _train_executor(self, number: int, policies: _Policies, kept: Sequence[Mapping[str, Any]]) -> None:
        section, folder = self._section, self._of(number) / "solver"
        earlier = [record for tasks in self._earlier(number) for record in tasks]
        seed = derived(self._settings.data.seed, "replay", number)
        records = replayed(list(kept), earlier, section.replay, seed)
        overlay = solver_overlay(
            self._config, self._settings, folder, tasks=len(records), start=_usable(policies.executor)
        )
        training = RoundTraining(
            f"round {number} solver",
            folder,
            overlay,
            tasks_of(records, self._world),
            self._parts.val_tasks[:1],
            section.executor.steps,
        )
        counts = {"steps": section.executor.steps, "tasks": len(records), "replayed": len(records) - len(kept)}
        await self._train(number, SOLVE, training, policies.executor, counts)

    async def _train(
        self, number: int, stage: str, training: RoundTraining, start: str, counts: Mapping[str, Any]
    ) -> None:
        manifest = self._manifest
        manifest.begin(number, stage, start=manifest.relative(start))

        def told(phase: str, step: int | None) -> None:
            self._say(number, stage, phase, step=step, total_steps=training.steps)

        with manifest.timed(number, stage):
            trained: TrainingResult = await self._parts.train(training, told)
        manifest.finish(
            number,
            stage,
            counts=dict(counts),
            metrics=stages.training_metrics(trained),
            checkpoint=manifest.relative(trained.checkpoint),
        )
        without_optimizer(training.folder / "checkpoints")

    async def _evaluate(self, number: int, policies: _Policies) -> None:
        manifest = self._manifest
        if manifest.is_over(number, EVALUATE):
            return
        solved = manifest.stage(number, SOLVE)
        if number and "checkpoint" not in solved:
            # The same weights and names would give the same episodes.
            before = manifest.stage(number - 1, EVALUATE)["metrics"]
            manifest.skip(number, EVALUATE, "the executor is that of the round before", metrics=before)
            return
        manifest.begin(number, EVALUATE)
        tasks, n = self._parts.val_tasks, self._section.executor.eval_n
        with manifest.timed(number, EVALUATE):
            metrics = await stages.evaluate(
                self._of(number),
                tasks,
                self._parts.player,
                _usable(policies.executor),
                n,
                self._progress(number, EVALUATE),
            )
        manifest.finish(number, EVALUATE, counts={"tasks": len(tasks), "episodes": len(tasks) * n}, metrics=metrics)

    def _earlier(self, number: int) -> list[list[dict[str, Any]]]:
        return [TaskPool(self._of(before), before, self._section.pool, {}).kept() for before in range(1, number)]

    def _known(self, number: int) -> dict[str, str]:
        return stages.known_questions(self._parts.questions, self._earlier(number))

    def _of(self, number: int) -> Path:
        return self._folder / f"round_{number}"

    def _progress(self, number: int, stage: str) -> stages.ReportCount:
        return lambda done, total: self._say(number, stage, f"{done} of {total}", step=done, total_steps=total)

    def _say(self, number: int, stage: str, phase: str, **facts: Any) -> None:
        rounds = self._section.rounds
        self._status.set(
            f"round {number} of {rounds}, {stage}: {phase}", round=number, rounds=rounds, stage=stage, **facts
        )

    def _told(self, number: int) -> None:
        manifest = self._manifest
        rounds = manifest.rounds()
        best = best_of(rounds, self._split)
        if best is not None:
            checkpoint = rounds[best]["executor"]
            found = {"round": best, "success": success_of(rounds[best], self._split), "checkpoint": checkpoint}
            if manifest.content.get("best") != found:
                manifest.content["best"] = found
                manifest.save()
            link(self._folder / BEST, manifest.absolute(checkpoint))
        last = last_step(self._folder)
        if last is None or last < number:
            append_jsonl(self._folder / METRICS, metrics_of(rounds, number))
            self._show(line_of(rounds, number, self._split))

    def _tell_end(self) -> None:
        if (best := self._manifest.content.get("best")) is not None:
            self._show(f"best: round {best['round']}, {self._split} {best['success']:.3f}, {self._folder / BEST}")


def link(path: Path, target: str) -> None:
    """Point a link at a folder, atomically. Does nothing if the target does not exist."""
    folder = Path(target)
    if not folder.exists():
        return
    aim = os.path.relpath(folder.resolve(), path.parent.resolve())
    if path.is_symlink() and os.readlink(path) == aim:
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(aim)
    draft.replace(path)


def _usable(checkpoint: str) -> str:
    """Return the absolute path of a folder, or the name of a model on the hub unchanged."""
    return str(Path(checkpoint).resolve()) if Path(checkpoint).exists() else checkpoint

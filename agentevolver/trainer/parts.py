"""Parts of a training run: hooks at fixed points of each step, for the trainer itself and for recipes (which run
first)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentevolver.types import Trajectory


class TrainerPart:
    """One concern of a training run. Override the hooks it needs; each does nothing by default."""

    worker: type[Any] | None = None
    """Subclass of `agentevolver.trainer.worker.PolicyWorker` that the actor is to run in, or None."""

    def before_rollouts(self, tasks: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
        """Return the tasks, as dicts, to roll out in place of `tasks`. Steps count from 1."""
        return tasks

    def after_rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """Take a step's rollouts, failed ones included, and return metrics. May annotate the trajectories."""
        return {}

    def advantages(self, step: int, batch: Any, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """Replace the advantages in TransferQueue and return metrics. `batch` is verl's `KVBatchMeta`."""
        return {}

    def update_actor(self, workers: Any, batch: Any, rows: Sequence[int], update: Any) -> dict[str, Any] | None:
        """Update the policy in place of the trainer's own update and return the metrics. None: the trainer updates.

        `workers` is the actor's worker group, `batch` verl's `KVBatchMeta`, `rows` the indices of the rows to train on
        (at least one), `update` the sizes of the update.
        """
        return None

    def after_update(self, step: int, metrics: dict[str, Any]) -> Mapping[str, float]:
        """Take the step's metrics after the update, before the weights reach the engine; return more metrics."""
        return {}

    def after_step(self, step: int) -> None:
        """Called when the new weights are in the engine, before the checkpoint is sealed."""

    def after_validation(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """Take the rollouts of a validation and return metrics."""
        return {}

    def save(self, folder: Path, step: int) -> None:
        """Write state into a checkpoint's folder."""

    def restore(self, folder: Path) -> None:
        """Restore state from a checkpoint's folder. If it is missing, start fresh or raise TrainingFailed."""

    def close(self) -> None:
        """Stop background work. Called once, also after a failure."""


class TrainerParts(TrainerPart):
    def __init__(self, parts: Iterable[TrainerPart]) -> None:
        self.parts = tuple(parts)
        self.worker = next((part.worker for part in self.parts if part.worker is not None), None)

    def before_rollouts(self, tasks: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
        for part in self.parts:
            tasks = part.before_rollouts(tasks, step)
        return tasks

    def after_rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        return _merged(part.after_rollouts(step, trajectories) for part in self.parts)

    def advantages(self, step: int, batch: Any, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        return _merged(part.advantages(step, batch, trajectories) for part in self.parts)

    def update_actor(self, workers: Any, batch: Any, rows: Sequence[int], update: Any) -> dict[str, Any] | None:
        made = (part.update_actor(workers, batch, rows, update) for part in self.parts)
        return next((metrics for metrics in made if metrics is not None), None)

    def after_update(self, step: int, metrics: dict[str, Any]) -> dict[str, float]:
        return _merged(part.after_update(step, metrics) for part in self.parts)

    def after_step(self, step: int) -> None:
        for part in self.parts:
            part.after_step(step)

    def after_validation(self, step: int, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        return _merged(part.after_validation(step, trajectories) for part in self.parts)

    def save(self, folder: Path, step: int) -> None:
        for part in self.parts:
            part.save(folder, step)

    def restore(self, folder: Path) -> None:
        for part in self.parts:
            part.restore(folder)

    def close(self) -> None:
        for part in self.parts:
            part.close()


def _merged(found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for one in found:
        metrics |= one
    return metrics

"""Parts of a training run: what happens at the fixed points of each step beside verl's loop.

The records on disk, the watches, the tasks and the experience are parts, and so is what a recipe adds. The trainer
calls the parts of recipes first, then its own in the order of `trainer_parts` in `agentevolver.trainer.trainer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentevolver.types import Trajectory


class TrainerPart:
    """One concern of a training run. Override the points that it needs; each does nothing by default."""

    worker: type[Any] | None = None
    """Subclass of `agentevolver.trainer.worker.PolicyWorker` that the actor is to run in, or None."""

    def before_rollouts(self, tasks: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
        """Return the tasks of a training step (from 1), as data, that are rolled out in place of `tasks`."""
        return tasks

    def after_rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """Take the graded rollouts of a step, failed ones among them; return metrics. May annotate them."""
        return {}

    def advantages(self, step: int, batch: Any, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """Replace the advantages of a step's rows in TransferQueue; return metrics.

        Args:
            batch: verl's `KVBatchMeta` of the step's rows.
        """
        return {}

    def update_actor(self, workers: Any, batch: Any, rows: Sequence[int], update: Any) -> dict[str, Any] | None:
        """Update the policy in place of the usual update and return the metrics, or return None to leave it to that.

        Args:
            workers: the actor's worker group.
            batch: verl's `KVBatchMeta` of the step's rows.
            rows: the places of those that are trained on, at least one.
            update: sizes of the update (`agentevolver.trainer.actor_update.Update`).
        """
        return None

    def after_update(self, step: int, metrics: dict[str, Any]) -> Mapping[str, float]:
        """Take the metrics of a step whose update is done, before the weights reach the engine; return more."""
        return {}

    def after_step(self, step: int) -> None:
        """Called when the step's weights are in the engine, before its checkpoint is sealed."""

    def after_validation(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """Take the rollouts of a validation; return metrics."""
        return {}

    def save(self, folder: Path, step: int) -> None:
        """Write state into a checkpoint's folder."""

    def restore(self, folder: Path) -> None:
        """Go on from a checkpoint's folder; one without this part's state may begin anew or raise TrainingFailed."""

    def close(self) -> None:
        """End what runs in the background; called once, also after a failure."""


class TrainerParts(TrainerPart):
    """Several parts as one, called in order."""

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

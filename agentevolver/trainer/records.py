"""Records of a training step on disk: its trajectories, and the rows of its update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentevolver.trainer.monitor.log import Retention
from agentevolver.trainer.parts import TrainerPart
from agentevolver.types import Trajectory
from agentevolver.utils.files import read_jsonl, write_jsonl


class Records(TrainerPart):
    """Writes `trajectories/step_<n>.jsonl` when a step's rollouts are graded, and again with their credit."""

    def __init__(self, directory: Path, retention: Retention) -> None:
        self._directory = directory
        self._retention = retention
        self._step = 0
        self._batches: list[Sequence[Trajectory]] = []

    @property
    def of_step(self) -> list[Trajectory]:
        """All rollouts of the step so far. With separate rollout GPUs a step has several batches."""
        return [one for batch in self._batches for one in batch]

    def begin(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Add a batch of a step's rollouts."""
        if step != self._step:
            self._step, self._batches = step, []
        self._batches.append(trajectories)

    def after_rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        self.write()
        return {}

    def write(self) -> None:
        path = self._directory / "trajectories" / f"step_{self._step}.jsonl"
        write_jsonl(path, (one.to_dict() for one in self.of_step))

    def write_samples(self, records: Sequence[dict[str, Any]]) -> None:
        """Write the update rows of the newest batch, after those of the step's earlier batches."""
        path = self._directory / "samples" / f"step_{self._step}.jsonl"
        write_jsonl(path, [*(read_jsonl(path) if len(self._batches) > 1 else ()), *records])

    def after_step(self, step: int) -> None:
        self._retention.tidy()

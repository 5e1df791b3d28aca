"""Datasets for verl's dataloader: a task file as it is, or a mixture drawn anew every epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from agentevolver.types import Task, Trajectory
from task_manager.epochs import Epochs
from task_manager.settings import TaskManagerSettings
from task_manager.tasks import read_tasks

SCALE_KEY = "advantage_scale"
# Row field: number of rollouts of this task, in place of verl's `rollout.n`.
ROLLOUTS_KEY = "__rollout_n__"


class TaskDataset(Dataset[dict[str, Any]]):
    """One row per task. verl passes a row's fields to the agent loop and keeps them with each sample.

    `data_source` names validation metrics: the environment, plus the split if there are several. `rollouts` overrides
    the number of rollouts per task.
    """

    def __init__(
        self, data_files: str | list[str], tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1
    ) -> None:
        files = [data_files] if isinstance(data_files, str) else list(data_files)
        tasks = [task for file in files for task in read_tasks(Path(file))]
        self._tasks = tasks if max_samples < 0 else tasks[:max_samples]
        self.rollouts: int | None = None
        self._several_splits = len({task.split for task in self._tasks}) > 1

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> dict[str, Any]:
        task = self._tasks[index]
        row = row_of(task, index, f"{task.env_type}/{task.split or 'train'}" if self._several_splits else task.env_type)
        return row if self.rollouts is None else {**row, ROLLOUTS_KEY: self.rollouts}


class MixedTasks(Dataset[dict[str, Any]]):
    """Original and synthetic training tasks of one or several environments.

    `len` is the fixed size of an epoch. Row numbers count all tasks, originals first.
    """

    def __init__(
        self,
        originals: Sequence[Task],
        synthetic: Sequence[Task],
        settings: TaskManagerSettings,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """`weights` are the environments' shares. Raises ValueError if a task occurs twice or nothing can be drawn."""
        self._settings = settings
        self._tasks: list[Task] = []
        self._places: dict[tuple[str, str], int] = {}
        self.epochs = Epochs(settings, originals, synthetic, weights)
        self._append(originals)
        self._append([self._scaled(task) for task in synthetic])
        self.sampler = TaskSampler(self)

    def __len__(self) -> int:
        return len(self.epochs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        task = self._tasks[index]
        return row_of(task, index, task.env_type)

    def add_synthetic(self, tasks: Sequence[Task]) -> None:
        """Add tasks from the next epoch on; known tasks are ignored."""
        new = [task for task in tasks if self.epochs.key(task) not in self._places]
        self._append([self._scaled(task) for task in new])
        self.epochs.add_synthetic(new)

    def record(self, trajectories: Iterable[Trajectory]) -> None:
        self.epochs.record(trajectories)

    def draw(self) -> list[int]:
        return [self._places[key] for key in self.epochs.draw()]

    def name(self, index: int) -> Any:
        """Return a row's key in checkpoints: the task id, or [environment, id] if there are several environments."""
        env_type, task_id = self.epochs.key(self._tasks[index])
        return [env_type, task_id] if env_type else task_id

    def place(self, name: Any) -> int | None:
        """Return the row of a checkpoint's key, or None if the task is gone."""
        return self._places.get(("", name) if isinstance(name, str) else (name[0], name[1]))

    def loader(self, batch_size: int, collate_fn: Callable[..., Any]) -> StatefulDataLoader[dict[str, Any]]:
        return StatefulDataLoader(
            dataset=self,
            batch_size=batch_size,
            # Worker processes would draw from copies of the mixture, which never see results.
            num_workers=0,
            drop_last=True,
            collate_fn=collate_fn,
            sampler=self.sampler,
        )

    def _scaled(self, task: Task) -> Task:
        if not self._settings.mixture.is_hybrid:
            return task
        return replace(task, metadata={**task.metadata, SCALE_KEY: self._settings.mixture.synthetic_advantage_scale})

    def _append(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            key = self.epochs.key(task)
            if key in self._places:
                raise ValueError(f"the task {task.task_id!r} occurs twice: remove one, or its groups get mixed up")
            self._places[key] = len(self._tasks)
            self._tasks.append(task)


class TaskSampler(Sampler[int]):
    def __init__(self, tasks: MixedTasks) -> None:
        self._dataset = tasks
        self._drawn: list[int] | None = None
        self._position = 0
        self._is_resumed = False

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[int]:
        return self._rows()

    def _rows(self) -> Iterator[int]:
        if not self._is_resumed:
            # Not before the first row, when all results of the previous epoch are recorded.
            self._drawn, self._position = self._dataset.draw(), 0
        self._is_resumed = False
        assert self._drawn is not None
        while self._position < len(self._drawn):
            self._position += 1
            yield self._drawn[self._position - 1]

    def state_dict(self) -> dict[str, Any]:
        dataset = self._dataset
        return {
            "drawn": None if self._drawn is None else [dataset.name(index) for index in self._drawn],
            "position": self._position,
            **dataset.epochs.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume within the epoch. Raises ValueError if one of its tasks is gone."""
        self._dataset.epochs.load_state_dict(state)
        self._position = int(state["position"])
        self._is_resumed = state["drawn"] is not None
        if state["drawn"] is not None:
            places = [(name, self._dataset.place(name)) for name in state["drawn"]]
            missing = [name for name, place in places if place is None]
            if missing:
                raise ValueError(
                    f"{len(missing)} tasks of the checkpoint are missing ({missing[0]!r}, ...): restore their file"
                )
            self._drawn = [place for _, place in places if place is not None]


def row_of(task: Task, index: int, data_source: str) -> dict[str, Any]:
    return {
        "index": index,
        "task": task.to_dict(),
        "data_source": data_source,
        "raw_prompt": [{"role": "user", "content": task.task_id}],
        "reward_model": {"style": "rule", "ground_truth": task.ground_truth or ""},
    }

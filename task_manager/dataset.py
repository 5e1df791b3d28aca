"""Tasks as the dataset of verl's dataloader: a task file as it is, or a mixture that is drawn anew every epoch.

`MixedTasks.loader` is what training reads from. Its state is part of verl's checkpoint, so a resumed run goes on within
the epoch, with the same draw, the same round of synthetic tasks and the same curriculum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from agentevolver.types import Task, Trajectory
from task_manager.settings import TaskManagerSettings
from task_manager.shares import Epochs
from task_manager.tasks import read_tasks

SCALE_KEY = "advantage_scale"
# Of a row: verl's agent loops roll its task out so often.
ROLLOUTS_KEY = "__rollout_n__"


class TaskDataset(Dataset[dict[str, Any]]):
    """One row a task. verl passes a row's fields on to the agent loop and keeps them with each of its samples.

    `data_source` names the validation metrics: the environment's type, and the split too where several are validated
    on. Where `rollouts` is set, that is how often each task is rolled out, whatever verl's section says.
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
    """Original and synthetic tasks to train on, of one environment or of several (`task_manager.shares.Epochs`).

    `len` is the size of an epoch, which stays; rows are numbered through everything there is, originals first. In a
    hybrid mixture each synthetic task's metadata says by how much its advantages count (`advantage_scale`); nothing
    says so otherwise.
    """

    def __init__(
        self,
        originals: Sequence[Task],
        synthetic: Sequence[Task],
        settings: TaskManagerSettings,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Take the tasks, and of several environments their weights; raises ValueError if a task is there twice or
        there is nothing to draw from."""
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
        """Let new tasks take part from the next epoch on; those that are there already are left out."""
        new = [task for task in tasks if self.epochs.key(task) not in self._places]
        self._append([self._scaled(task) for task in new])
        self.epochs.add_synthetic(new)

    def record(self, trajectories: Iterable[Trajectory]) -> None:
        """Tell the curriculum of a step's trajectories."""
        self.epochs.record(trajectories)

    def draw(self) -> list[int]:
        """Return the rows of the next epoch."""
        return [self._places[key] for key in self.epochs.draw()]

    def name(self, index: int) -> Any:
        """Return what a checkpoint knows a row's task by: its id, of several environments [environment, id]."""
        env_type, task_id = self.epochs.key(self._tasks[index])
        return [env_type, task_id] if env_type else task_id

    def place(self, name: Any) -> int | None:
        """Return the row of the task of a name, None if it is not there."""
        return self._places.get(("", name) if isinstance(name, str) else (name[0], name[1]))

    def loader(self, batch_size: int, collate_fn: Callable[..., Any]) -> StatefulDataLoader[dict[str, Any]]:
        """Return the loader of training: batches of whole epochs, a rest that does not fill one left out.
        It loads in this process."""
        return StatefulDataLoader(
            dataset=self,
            batch_size=batch_size,
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
                raise ValueError(f"the task {task.task_id!r} is there twice; rollout groups would be mixed up")
            self._places[key] = len(self._tasks)
            self._tasks.append(task)


class TaskSampler(Sampler[int]):
    """Rows epoch by epoch. An epoch is drawn at its first row, when all results of the one before are known."""

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
            self._drawn, self._position = self._dataset.draw(), 0
        self._is_resumed = False
        assert self._drawn is not None
        while self._position < len(self._drawn):
            self._position += 1
            yield self._drawn[self._position - 1]

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch's draw, the place in it, and what later draws depend on."""
        dataset = self._dataset
        return {
            "drawn": None if self._drawn is None else [dataset.name(index) for index in self._drawn],
            "position": self._position,
            **dataset.epochs.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Raises ValueError if a task of the epoch that runs is gone."""
        self._dataset.epochs.load_state_dict(state)
        self._position = int(state["position"])
        self._is_resumed = state["drawn"] is not None
        if state["drawn"] is not None:
            places = [(name, self._dataset.place(name)) for name in state["drawn"]]
            missing = [name for name, place in places if place is None]
            if missing:
                raise ValueError(
                    f"{len(missing)} tasks of the checkpoint are gone ({missing[0]!r}, say): put their task file back"
                )
            self._drawn = [place for _, place in places if place is not None]


def row_of(task: Task, index: int, data_source: str) -> dict[str, Any]:
    """Return a task as verl's dataloader passes it on."""
    return {
        "index": index,
        "task": task.to_dict(),
        "data_source": data_source,
        "raw_prompt": [{"role": "user", "content": task.task_id}],
        "reward_model": {"style": "rule", "ground_truth": task.ground_truth or ""},
    }

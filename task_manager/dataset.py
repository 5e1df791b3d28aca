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
from task_manager.mixture import Curriculum, Mixture
from task_manager.settings import TaskManagerSettings
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
    """Original and synthetic tasks to train on.

    `len` is the size of an epoch, which stays; rows are numbered through everything there is, originals first. In a
    hybrid mixture each synthetic task's metadata says by how much its advantages count (`advantage_scale`); nothing
    says so otherwise.
    """

    def __init__(self, originals: Sequence[Task], synthetic: Sequence[Task], settings: TaskManagerSettings) -> None:
        """Raises ValueError if an id is there twice or there is nothing to draw from."""
        self._settings = settings
        self._tasks: list[Task] = []
        self._places: dict[str, int] = {}
        self.mixture = Mixture(
            settings.mixture, [task.task_id for task in originals], [task.task_id for task in synthetic]
        )
        self.curriculum = Curriculum(settings.curriculum)
        self._append(originals)
        self._append([self._scaled(task) for task in synthetic])
        self.sampler = TaskSampler(self)

    def __len__(self) -> int:
        return len(self.mixture)

    def __getitem__(self, index: int) -> dict[str, Any]:
        task = self._tasks[index]
        return row_of(task, index, task.env_type)

    def add_synthetic(self, tasks: Sequence[Task]) -> None:
        """Let new tasks take part from the next epoch on; ids that are there already are left out."""
        new = [task for task in tasks if task.task_id not in self._places]
        self._append([self._scaled(task) for task in new])
        self.mixture.add_synthetic([task.task_id for task in new])

    def record(self, trajectories: Iterable[Trajectory]) -> None:
        """Tell the curriculum of a step's trajectories."""
        self.curriculum.record(trajectories)

    def draw(self) -> list[int]:
        """Return the rows of the next epoch."""
        self.curriculum.begin_epoch(self.mixture.epoch)
        return [self._places[task_id] for task_id in self.mixture.draw(self.curriculum.weight)]

    def place(self, task_id: str) -> int | None:
        """Return the row of a task, None if it is not there."""
        return self._places.get(task_id)

    def task_id(self, index: int) -> str:
        """Return the id of a row's task."""
        return self._tasks[index].task_id

    def loader(self, batch_size: int, collate_fn: Callable[..., Any]) -> StatefulDataLoader[dict[str, Any]]:
        """Return the loader of training: batches of whole epochs, a rest that does not fill one left out. It loads in
        this process."""
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
            if task.task_id in self._places:
                raise ValueError(f"the task {task.task_id!r} is there twice; rollout groups would be mixed up")
            self._places[task.task_id] = len(self._tasks)
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
            "drawn": None if self._drawn is None else [dataset.task_id(index) for index in self._drawn],
            "position": self._position,
            "mixture": dataset.mixture.state_dict(),
            "curriculum": dataset.curriculum.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Raises ValueError if a task of the epoch that runs is gone."""
        self._dataset.mixture.load_state_dict(state["mixture"])
        self._dataset.curriculum.load_state_dict(state["curriculum"])
        self._position = int(state["position"])
        self._is_resumed = state["drawn"] is not None
        if state["drawn"] is not None:
            places = [(task_id, self._dataset.place(task_id)) for task_id in state["drawn"]]
            missing = [task_id for task_id, place in places if place is None]
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

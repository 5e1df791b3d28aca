"""Mixture and curriculum: which tasks an epoch consists of, and how often each is drawn.

Epochs take tasks from a cycle: a random order of all tasks, heavier ones earlier. A cycle starts again once all are
drawn, so no task repeats before every other one came. A task of weight 0 waits until its weight rises.
"""

from __future__ import annotations

import logging
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentevolver.types import Outcome, Trajectory
from task_manager.profile import TaskPreference
from task_manager.settings import CurriculumSettings, MixtureSettings

logger = logging.getLogger(__name__)
Weight = Callable[[str], float]


def equal_weight(task_id: str) -> float:
    return 1.0


class TaskCycle:
    """An endless sequence of ids, in which every id with a positive weight comes before one repeats.

    `name` and `seed` decide the order. `newest_first`: new ids go to the front of the current round, not to its end.
    """

    def __init__(self, name: str, ids: Sequence[str], seed: int, *, shuffle: bool, newest_first: bool = False) -> None:
        self._name = name
        self._ids = list(ids)
        self._seed = seed
        self._shuffle = shuffle
        self._newest_first = newest_first
        self._number = 0
        self._left: list[str] = []

    def add(self, ids: Sequence[str]) -> None:
        """Add ids from the next draw on; known ids keep their place."""
        known = set(self._ids)
        new = [task_id for task_id in ids if task_id not in known]
        self._ids = self._joined(self._ids, new)
        if self._number:
            self._left = self._joined(self._left, new)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._ids)

    def known(self, ids: Iterable[str]) -> set[str]:
        return set(self._ids).intersection(ids)

    def take(self, count: int, weight: Weight) -> list[str]:
        """Return the next `count` ids. Ids repeat within the draw if too few have a positive weight."""
        awake = {task_id for task_id in self._ids if weight(task_id) > 0}
        if not awake:
            awake, weight = set(self._ids), equal_weight
        drawn: list[str] = []
        while len(drawn) < count and self._ids:
            ready = [task_id for task_id in self._left if task_id in awake]
            if not ready:
                self._begin(weight)
                continue
            # A new round may begin with ids that the old one already put into this draw: others first.
            had = set(drawn)
            fresh = [task_id for task_id in ready if task_id not in had] if len(had) < len(awake) else ready
            chosen = fresh[: count - len(drawn)]
            drawn += chosen
            gone = set(chosen)
            self._left = [task_id for task_id in self._left if task_id not in gone]
        return drawn

    def _begin(self, weight: Weight) -> None:
        rng = random.Random(f"{self._name}-{self._seed}-{self._number}")
        self._number += 1
        self._left = list(self._ids)
        if self._shuffle:
            # Weighted order without replacement (Efraimidis and Spirakis 2006): sort by exponentials of rate `weight`.
            keys = {task_id: rng.expovariate(1.0) / max(weight(task_id), 1e-9) for task_id in self._ids}
            self._left.sort(key=lambda task_id: (keys[task_id], task_id))

    def state_dict(self) -> dict[str, Any]:
        return {"number": self._number, "left": list(self._left), "ids": list(self._ids)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume; ids that are gone are dropped, new ones are added."""
        known = set(self._ids)
        self._number = int(state["number"])
        self._left = [task_id for task_id in state["left"] if task_id in known]
        before = set(state["ids"])
        if self._number:
            self._left = self._joined(self._left, [task_id for task_id in self._ids if task_id not in before])

    def _joined(self, ids: list[str], new: list[str]) -> list[str]:
        return new + ids if self._newest_first else ids + new


class Mixture:
    """Draws epochs of original and synthetic tasks. Raises ValueError if there is nothing to draw from.

    `name` makes the orders of several mixtures independent.
    """

    def __init__(
        self, settings: MixtureSettings, originals: Sequence[str], synthetic: Sequence[str], name: str = ""
    ) -> None:
        self._settings = settings
        self._name = f"{name}-" if name else ""
        self._originals = TaskCycle(
            f"{self._name}original",
            originals if settings.use_original_tasks else (),
            settings.seed,
            shuffle=settings.shuffle,
        )
        self._synthetic = TaskCycle(
            f"{self._name}synthetic",
            synthetic if settings.needs_synthetic else (),
            settings.seed,
            shuffle=settings.shuffle,
        )
        # Fixed, also when tasks are added or rest later: the learning-rate schedule depends on the length of an epoch.
        self._n_originals = len(originals) if settings.use_original_tasks else 0
        self._n_synthetic = self._wanted(len(originals), len(synthetic))
        self._focused = TaskCycle(f"{self._name}focused", (), settings.seed, shuffle=False, newest_first=True)
        self._focused_share = 0.0
        self._retired: set[str] = set()
        self._epoch = 0
        if len(self) == 0:
            raise ValueError(
                f"the mixture is empty: {len(originals)} original and {len(synthetic)} synthetic tasks with "
                f"use_original_tasks={settings.use_original_tasks}, "
                f"synthetic_data_ratio={settings.synthetic_data_ratio:g}"
            )

    def __len__(self) -> int:
        return self._n_originals + self._n_synthetic

    @property
    def epoch(self) -> int:
        return self._epoch

    def resize(self, size: int) -> None:
        self._n_originals = round(size * self._n_originals / len(self))
        self._n_synthetic = size - self._n_originals

    def draw(self, weight: Weight = equal_weight) -> list[str]:
        def unretired(task_id: str) -> float:
            return 0.0 if task_id in self._retired else weight(task_id)

        focused = set(self._focused.ids)
        awake = sum(unretired(task_id) > 0 for task_id in focused)
        most = max(1, int(self._focused_share * len(self)))
        n_focused = min(most, awake, self._n_synthetic)
        ids = self._originals.take(self._n_originals, weight)
        ids += self._focused.take(n_focused, unretired)
        ids += self._synthetic.take(
            self._n_synthetic - n_focused, lambda task_id: 0.0 if task_id in focused else unretired(task_id)
        )
        if self._settings.shuffle:
            random.Random(f"{self._name}epoch-{self._settings.seed}-{self._epoch}").shuffle(ids)
        self._epoch += 1
        return ids

    def add_synthetic(self, ids: Sequence[str]) -> None:
        self._synthetic.add(ids)

    def focus(self, ids: Sequence[str], share: float) -> None:
        """Reserve up to `share` of each epoch, at least one place, for these synthetic tasks, the newest first.

        Each comes at most once per epoch.
        """
        self._focused_share = share
        known = self._synthetic.known(ids)
        self._focused.add([task_id for task_id in ids if task_id in known])

    def retire(self, ids: Iterable[str]) -> None:
        """Exclude synthetic tasks from later epochs. If all of them are retired, all are drawn again."""
        self._retired |= self._synthetic.known(ids)

    @property
    def retired(self) -> frozenset[str]:
        return frozenset(self._retired)

    def state_dict(self) -> dict[str, Any]:
        retired = {"retired": sorted(self._retired)} if self._retired else {}
        focused = {"focused": self._focused.state_dict()} if self._focused.ids else {}
        return {
            **retired,
            **focused,
            "epoch": self._epoch,
            "sizes": [self._n_originals, self._n_synthetic],
            "originals": self._originals.state_dict(),
            "synthetic": self._synthetic.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._epoch = int(state["epoch"])
        self._n_originals, self._n_synthetic = (int(size) for size in state["sizes"])
        self._retired = set(state.get("retired", ()))
        self._originals.load_state_dict(state["originals"])
        self._synthetic.load_state_dict(state["synthetic"])
        if (focused := state.get("focused")) is not None:
            self._focused.load_state_dict(focused)

    def _wanted(self, n_originals: int, n_synthetic: int) -> int:
        if not self._settings.needs_synthetic:
            return 0
        wanted = int(n_originals * self._settings.synthetic_data_ratio) if n_originals else n_synthetic
        if wanted > n_synthetic:
            logger.info("an epoch takes all %d synthetic tasks, synthetic_data_ratio asks for %d", n_synthetic, wanted)
        return min(wanted, n_synthetic)


@dataclass(slots=True)
class _Standing:
    success: float  # smoothed success rate
    rests_until: int = 0  # first epoch after the rest
    rests: int = 0  # rests in a row


class Curriculum:
    """Task weights from the measured success of rollout groups; all 1 if switched off.

    A group of equal scores has no advantage, hence no gradient; its task rests for some epochs, twice as long each time
    in a row. Other tasks weigh exp(-(p - target)^2 / (2 width^2)) with p the smoothed success rate (Gaussian utility of
    Socratic-Zero); untried tasks weigh 1. Failed rollouts do not count.
    """

    def __init__(self, settings: CurriculumSettings) -> None:
        self._settings = settings
        self._standings: dict[str, _Standing] = {}
        self._recent: float | None = None
        self._epoch = 0

    def begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def weight(self, task_id: str) -> float:
        """Return a task's weight, 0 while it rests."""
        standing = self._standings.get(task_id)
        if not self._settings.enable or standing is None:
            return 1.0
        if self._epoch < standing.rests_until:
            return 0.0
        distance = (standing.success - self._settings.target_success) / self._settings.width
        # The floor lets a task be measured again: the policy changes.
        return max(0.05, math.exp(-0.5 * distance * distance))

    def record(self, trajectories: Iterable[Trajectory]) -> None:
        """Record a step's trajectories, which must form whole groups."""
        groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
        for trajectory in trajectories:
            if trajectory.outcome is not None:
                groups[trajectory.task.task_id, trajectory.group_id].append(trajectory.outcome)
        for (task_id, _), outcomes in groups.items():
            self._take(task_id, outcomes)

    def metrics(self) -> dict[str, float]:
        if not self._settings.enable:
            return {}
        resting = sum(self._epoch < standing.rests_until for standing in self._standings.values())
        out = {"curriculum/known": float(len(self._standings)), "curriculum/resting": float(resting)}
        return out if self._recent is None else {**out, "curriculum/success": self._recent}

    def preference(self, wanted: TaskPreference) -> TaskPreference:
        """Return the difficulty of new tasks: harder if the policy mostly succeeds, easier if it mostly fails."""
        if not self._settings.enable or self._recent is None:
            return wanted
        if self._recent >= self._settings.harder_above:
            return wanted.shifted(1)
        return wanted.shifted(-1) if self._recent <= self._settings.easier_below else wanted

    def state_dict(self) -> dict[str, Any]:
        standings = {task_id: asdict(standing) for task_id, standing in self._standings.items()}
        return {"epoch": self._epoch, "recent": self._recent, "standings": standings}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._epoch, self._recent = int(state["epoch"]), state["recent"]
        self._standings = {task_id: _Standing(**standing) for task_id, standing in state["standings"].items()}

    def _take(self, task_id: str, outcomes: list[Outcome]) -> None:
        settings = self._settings
        success = sum(outcome.success for outcome in outcomes) / len(outcomes)
        no_signal = len(outcomes) > 1 and len({outcome.score for outcome in outcomes}) == 1
        known = self._standings.get(task_id)
        standing = self._standings[task_id] = known or _Standing(success)
        standing.success += settings.smoothing * (success - standing.success)
        standing.rests = standing.rests + 1 if no_signal else 0
        if no_signal:
            epochs = min(settings.rest_epochs * 2 ** (standing.rests - 1), settings.max_rest_epochs)
            # `_epoch` is the running one; the rest covers the `epochs` after it.
            standing.rests_until = self._epoch + 1 + epochs
        self._recent = success if self._recent is None else self._recent + 0.05 * (success - self._recent)

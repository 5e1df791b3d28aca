"""Mixture and curriculum: which tasks an epoch is made of, original or synthetic, and how much each weighs.

Tasks of a kind stand in a round: a random order of all of them, heavier ones earlier. Epochs take from it what they
need; a new round begins when it is used up, so every task comes before one repeats. A task of weight 0 rests: it is
passed over, and stays in the round for when it wakes. The number of tasks in an epoch is fixed, so that the
learning-rate schedule is: `len(mixture)` at the start, also if tasks are added or rest later.

The curriculum's weights follow the measured success of rollout groups. A group in which all rollouts score the same has
no advantage, hence no gradient: its task rests for some epochs, twice as long each time in a row, and is then tried
again, since the policy has changed. The others weigh exp(-(p - target)^2 / (2 width^2)) with p their smoothed success
rate (the Gaussian utility of Socratic-Zero); tasks that were never tried weigh 1. Failed rollouts count for nothing.
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
    """Every task the same."""
    return 1.0


class Round:
    """A never-ending sequence of ids in which every waking id comes before one repeats.

    Args:
        name: with the seed, decides the order.
        seed: of the draws.
        shuffle: false keeps the order of the ids, round after round.
        newest_first: ids that are added come at the beginning of the round that runs, and of the order that is kept;
            else at the end.
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
        """Let more ids take part, from the next draw on; those that take part already stay where they are."""
        known = set(self._ids)
        new = [task_id for task_id in ids if task_id not in known]
        self._ids = self._joined(self._ids, new)
        if self._number:
            self._left = self._joined(self._left, new)

    @property
    def ids(self) -> tuple[str, ...]:
        """Those that take part."""
        return tuple(self._ids)

    def known(self, ids: Iterable[str]) -> set[str]:
        """Return those of the ids that take part."""
        return set(self._ids).intersection(ids)

    def take(self, count: int, weight: Weight) -> list[str]:
        """Return the next `count` ids. If fewer are awake, some repeat within the draw;
        if none is, all are taken to be."""
        awake = {task_id for task_id in self._ids if weight(task_id) > 0}
        if not awake:
            awake, weight = set(self._ids), equal_weight
        drawn: list[str] = []
        while len(drawn) < count and self._ids:
            ready = [task_id for task_id in self._left if task_id in awake]
            if not ready:
                self._begin(weight)
                continue
            # What the last round brought into this draw does not come again while others are left.
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
            # Weighted order without replacement (Efraimidis and Spirakis 2006): the smallest of exponentials with rate
            # `weight` first.
            keys = {task_id: rng.expovariate(1.0) / max(weight(task_id), 1e-9) for task_id in self._ids}
            self._left.sort(key=lambda task_id: (keys[task_id], task_id))

    def state_dict(self) -> dict[str, Any]:
        """Return where it stands, JSON-ready."""
        return {"number": self._number, "left": list(self._left), "ids": list(self._ids)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; ids that are gone are left out, and new ones come as added ones do."""
        known = set(self._ids)
        self._number = int(state["number"])
        self._left = [task_id for task_id in state["left"] if task_id in known]
        before = set(state["ids"])
        if self._number:
            self._left = self._joined(self._left, [task_id for task_id in self._ids if task_id not in before])

    def _joined(self, ids: list[str], new: list[str]) -> list[str]:
        return new + ids if self._newest_first else ids + new


class Mixture:
    """Mixture of epochs: draws them.

    Args:
        settings: the section `task_manager.mixture`. The ratio counts synthetic tasks per original task, whether these
            are used or not.
        originals, synthetic: task ids.
        name: of one of several mixtures, so that their orders have nothing in common.

    Raises:
        ValueError: there is nothing to draw from.
    """

    def __init__(
        self, settings: MixtureSettings, originals: Sequence[str], synthetic: Sequence[str], name: str = ""
    ) -> None:
        self._settings = settings
        self._name = f"{name}-" if name else ""
        self._originals = Round(
            f"{self._name}original",
            originals if settings.use_original_tasks else (),
            settings.seed,
            shuffle=settings.shuffle,
        )
        self._synthetic = Round(
            f"{self._name}synthetic",
            synthetic if settings.needs_synthetic else (),
            settings.seed,
            shuffle=settings.shuffle,
        )
        self._n_originals = len(originals) if settings.use_original_tasks else 0
        self._n_synthetic = self._wanted(len(originals), len(synthetic))
        self._focused = Round(f"{self._name}focused", (), settings.seed, shuffle=False, newest_first=True)
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
        """How many epochs were drawn."""
        return self._epoch

    def resize(self, size: int) -> None:
        """Let an epoch have so many tasks, original and synthetic ones in the proportion that they have now."""
        self._n_originals = round(size * self._n_originals / len(self))
        self._n_synthetic = size - self._n_originals

    def draw(self, weight: Weight = equal_weight) -> list[str]:
        """Return the ids of the next epoch, always `len(mixture)` of them."""

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
        """Let new synthetic tasks take part from the next epoch on."""
        self._synthetic.add(ids)

    def focus(self, ids: Sequence[str], share: float) -> None:
        """Let synthetic tasks take a share (0..1) of each epoch at most, one place at least, the newest first; the rest
        of the epoch is the other tasks'. Each comes once an epoch at most."""
        self._focused_share = share
        known = self._synthetic.known(ids)
        self._focused.add([task_id for task_id in ids if task_id in known])

    def retire(self, ids: Iterable[str]) -> None:
        """Leave synthetic tasks out from the next epoch on, for good; original ones stay. Where all have left, all are
        drawn from again."""
        self._retired |= self._synthetic.known(ids)

    @property
    def retired(self) -> frozenset[str]:
        """The synthetic tasks that have left."""
        return frozenset(self._retired)

    def state_dict(self) -> dict[str, Any]:
        """Return where it stands, JSON-ready, the epoch's size included."""
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
        """Go on from a state."""
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
    """What is known of a task: smoothed success, until which epoch it rests, and how many times in a row it had to."""

    success: float
    rests_until: int = 0
    rests: int = 0


class Curriculum:
    """Weights of tasks; switched off it gives every task the weight 1."""

    def __init__(self, settings: CurriculumSettings) -> None:
        self._settings = settings
        self._standings: dict[str, _Standing] = {}
        self._recent: float | None = None
        self._epoch = 0

    def begin_epoch(self, epoch: int) -> None:
        """Say which epoch is drawn next."""
        self._epoch = epoch

    def weight(self, task_id: str) -> float:
        """Return a task's weight; 0 while it rests."""
        standing = self._standings.get(task_id)
        if not self._settings.enable or standing is None:
            return 1.0
        if self._epoch < standing.rests_until:
            return 0.0
        distance = (standing.success - self._settings.target_success) / self._settings.width
        return max(0.05, math.exp(-0.5 * distance * distance))

    def record(self, trajectories: Iterable[Trajectory]) -> None:
        """Take a step's trajectories, all rollouts of a group together."""
        groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
        for trajectory in trajectories:
            if trajectory.outcome is not None:
                groups[trajectory.task.task_id, trajectory.group_id].append(trajectory.outcome)
        for (task_id, _), outcomes in groups.items():
            self._take(task_id, outcomes)

    def metrics(self) -> dict[str, float]:
        """Return how many tasks rest, and the smoothed success over all groups."""
        if not self._settings.enable:
            return {}
        resting = sum(self._epoch < standing.rests_until for standing in self._standings.values())
        out = {"curriculum/known": float(len(self._standings)), "curriculum/resting": float(resting)}
        return out if self._recent is None else {**out, "curriculum/success": self._recent}

    def preference(self, wanted: TaskPreference) -> TaskPreference:
        """Return what new tasks should be like: harder where the policy mostly succeeds,
        easier where it mostly fails."""
        if not self._settings.enable or self._recent is None:
            return wanted
        if self._recent >= self._settings.harder_above:
            return wanted.shifted(1)
        return wanted.shifted(-1) if self._recent <= self._settings.easier_below else wanted

    def state_dict(self) -> dict[str, Any]:
        """Return what it knows, JSON-ready."""
        standings = {task_id: asdict(standing) for task_id, standing in self._standings.items()}
        return {"epoch": self._epoch, "recent": self._recent, "standings": standings}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
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
            # The epoch that runs is number `_epoch`; the rest covers the next `epochs` ones.
            standing.rests_until = self._epoch + 1 + epochs
        self._recent = success if self._recent is None else self._recent + 0.05 * (success - self._recent)

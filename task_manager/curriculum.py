"""Which tasks are worth their rollouts: weights that follow the measured success of rollout groups.

A group in which all rollouts score the same has no advantage, hence no gradient. Such a task rests for some epochs,
twice as long each time in a row, and is then tried again, since the policy has changed. The others weigh exp(-(p -
target)^2 / (2 width^2)) with p their smoothed success rate (the Gaussian utility of Socratic-Zero), and tasks that were
never tried weigh 1. Failed rollouts count for nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from task_manager.profile import TaskPreference
from task_manager.settings import CurriculumSettings


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

    def record(self, trajectories: Iterable[Mapping[str, Any]]) -> None:
        """Take a step's trajectory records (`Trajectory.to_dict()`), all rollouts of a group together."""
        groups: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
        for record in trajectories:
            if record["outcome"] is not None:
                groups[str(record["task"]["task_id"]), str(record["group_id"])].append(record["outcome"])
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
        """Return what new tasks should be like: harder where the policy mostly succeeds, easier where it mostly
        fails."""
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

    def _take(self, task_id: str, outcomes: list[Mapping[str, Any]]) -> None:
        settings = self._settings
        success = sum(bool(outcome["success"]) for outcome in outcomes) / len(outcomes)
        no_signal = len(outcomes) > 1 and len({outcome["score"] for outcome in outcomes}) == 1
        known = self._standings.get(task_id)
        standing = self._standings[task_id] = known or _Standing(success)
        standing.success += settings.smoothing * (success - standing.success)
        standing.rests = standing.rests + 1 if no_signal else 0
        if no_signal:
            epochs = min(settings.rest_epochs * 2 ** (standing.rests - 1), settings.max_rest_epochs)
            # The epoch that runs is number `_epoch`; the rest covers the next `epochs` ones.
            standing.rests_until = self._epoch + 1 + epochs
        self._recent = success if self._recent is None else self._recent + 0.05 * (success - self._recent)

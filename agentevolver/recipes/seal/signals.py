"""Signals: what a task's success rates over training say about it.

A visit is one rollout group of the task in a step; rollouts without a grade do not count. A task is `forgotten` if its
success rate fell far below its best, `uncertain` if it is sometimes solved, `stuck` if its last visits all failed,
`mastered` if they all succeeded. Other tasks have no signal.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentevolver.recipes.seal.settings import SealSettings
from agentevolver.types import Trajectory

Signal = Literal["forgotten", "uncertain", "stuck", "mastered"]
SIGNALS: tuple[Signal, ...] = ("forgotten", "uncertain", "stuck", "mastered")
# Equal visits in a row after which a task is stuck or mastered rather than unlucky or lucky.
VISITS = 3
# Only a task that once had this success rate can be forgotten.
ONCE_SOLVED = 0.6


@dataclass(slots=True)
class TaskHistory:
    """Success rates of one task: the best so far, and those of the last visits, oldest first."""

    best: float = 0.0
    rates: list[float] = field(default_factory=list)

    def add(self, rate: float) -> None:
        self.best = max(self.best, rate)
        self.rates = [*self.rates, rate][-VISITS:]


class Signals:
    def __init__(self) -> None:
        self._histories: dict[str, TaskHistory] = {}

    def record(self, trajectories: Iterable[Trajectory]) -> None:
        """Take the trajectories of a step. All rollouts of a group must be in one call."""
        groups: dict[tuple[str, str], list[bool]] = defaultdict(list)
        for one in trajectories:
            if one.outcome is not None:
                groups[one.task.task_id, one.group_id].append(one.outcome.success)
        for (task_id, _), won in groups.items():
            self._histories.setdefault(task_id, TaskHistory()).add(sum(won) / len(won))

    def of(self, task_id: str) -> Signal | None:
        history = self._histories.get(task_id)
        if history is None:
            return None
        now, (low, high) = history.rates[-1], SealSettings.uncertain
        # Rates are quotients of floats, so bounds have a margin for rounding.
        if history.best >= ONCE_SOLVED and history.best - now >= SealSettings.forgotten - 1e-9:
            return "forgotten"
        if low - 1e-9 <= now <= high + 1e-9:
            return "uncertain"
        if len(history.rates) == VISITS and len(set(history.rates)) == 1:
            return "mastered" if now == 1.0 else "stuck" if now == 0.0 else None
        return None

    def mastered(self) -> set[str]:
        return {task_id for task_id in self._histories if self.of(task_id) == "mastered"}

    def counts(self) -> dict[Signal, int]:
        found = Counter(self.of(task_id) for task_id in self._histories)
        return {name: found[name] for name in SIGNALS}

    def state_dict(self) -> dict[str, Any]:
        return {task_id: [history.best, history.rates] for task_id, history in self._histories.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._histories = {
            task_id: TaskHistory(float(best), [float(rate) for rate in rates])
            for task_id, (best, rates) in state.items()
        }

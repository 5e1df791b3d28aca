"""Weaknesses of a policy: the diagnoses of the last steps, grouped by tool and kind.

Failures on forgotten or uncertain tasks count twice, because these can be learnt now. Failures on mastered tasks are
chance and do not count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from agentevolver.recipes.seal.signals import Signal, Signals
from agentevolver.types import Diagnosis, Task, Trajectory
from task_manager.settings import Focus
from task_manager.tasks import seed_of

WEIGHTS: Mapping[Signal | None, int] = {"forgotten": 2, "uncertain": 2, "stuck": 1, None: 1, "mastered": 0}
EXAMPLES = 3
TEXT = 200


@dataclass(frozen=True, slots=True)
class WeaknessExample:
    """A failed step with shortened texts; `seed` is the id of the world."""

    task_id: str
    seed: str
    query: str
    action: str
    observation: str
    words: str


@dataclass(frozen=True, slots=True)
class Weakness:
    """A tool and a kind of fault. `count` is weighted. `seeds` are the worlds where it was seen, without repeats, and
    `examples` the failed steps, both latest first."""

    tool: str
    kind: str
    count: int
    examples: tuple[WeaknessExample, ...]
    seeds: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.tool or '?'} · {self.kind}"

    def focus(self, seeds: Iterable[str]) -> Focus:
        return Focus(
            tool=self.tool,
            kind=self.kind,
            words=tuple(dict.fromkeys(one.words for one in self.examples if one.words)),
            seeds=tuple(seeds),
            not_like=tuple(dict.fromkeys(one.query for one in self.examples if one.query)),
        )

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True, slots=True)
class _Seen:
    step: int
    tool: str
    kind: str
    example: WeaknessExample


class WeaknessWindow:
    def __init__(self, steps: int) -> None:
        """`steps` is the length of the window in training steps, the newest included."""
        self._steps = steps
        self._seen: deque[_Seen] = deque()

    def record(self, step: int, trajectories: Iterable[Trajectory]) -> None:
        for one in trajectories:
            self._seen.extend(_Seen(step, d.tool, d.kind, _example(one, d)) for d in one.diagnoses)
        while self._seen and self._seen[0].step <= step - self._steps:
            self._seen.popleft()

    def weaknesses(self, signals: Signals) -> list[Weakness]:
        found: dict[tuple[str, str], list[tuple[int, WeaknessExample]]] = {}
        for seen in reversed(self._seen):
            weight = WEIGHTS[signals.of(seen.example.task_id)]
            if weight:
                found.setdefault((seen.tool, seen.kind), []).append((weight, seen.example))
        made = [
            Weakness(
                tool,
                kind,
                sum(weight for weight, _ in steps),
                tuple({one.task_id: one for _, one in reversed(steps)}.values())[-EXAMPLES:][::-1],
                tuple(dict.fromkeys(one.seed for _, one in steps)),
            )
            for (tool, kind), steps in found.items()
        ]
        return sorted(made, key=lambda weakness: (-weakness.count, weakness.tool, weakness.kind))

    def state_dict(self) -> list[dict[str, Any]]:
        return [asdict(seen) for seen in self._seen]

    def load_state_dict(self, state: Iterable[Mapping[str, Any]]) -> None:
        self._seen = deque(_Seen(**{**seen, "example": WeaknessExample(**seen["example"])}) for seen in state)


def focused(weaknesses: Iterable[Weakness], explorations: int) -> tuple[Focus, ...]:
    """Distribute `explorations` worlds over the weaknesses; return the focus of each weakness that gets one.

    Weaknesses take turns and each world is used once, so a frequent weakness gets no more worlds than a rare one.
    """
    waiting = [(one, deque(one.seeds)) for one in weaknesses]
    chosen: dict[int, list[str]] = {place: [] for place in range(len(waiting))}
    taken: set[str] = set()
    while len(taken) < explorations and any(seeds for _, seeds in waiting):
        for place, (_, seeds) in enumerate(waiting):
            while seeds and seeds[0] in taken:
                seeds.popleft()
            if seeds and len(taken) < explorations:
                chosen[place].append(seeds[0])
                taken.add(seeds.popleft())
    return tuple(waiting[place][0].focus(seeds) for place, seeds in chosen.items() if seeds)


def _example(trajectory: Trajectory, found: Diagnosis) -> WeaknessExample:
    task, step = trajectory.task, trajectory.steps[found.step]
    return WeaknessExample(
        task.task_id, seed_of(task), _query(task, trajectory), step.action[:TEXT], step.observation[:TEXT], found.words
    )


def _query(task: Task, trajectory: Trajectory) -> str:
    if task.query:
        return task.query[:TEXT]
    asked = [str(m.get("content") or "") for m in trajectory.messages if m.get("role") == "user"][:1]
    return asked[0][:TEXT] if asked else ""

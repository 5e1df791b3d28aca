"""Epochs of one environment or of several: whose turn each place is, and which task of that environment comes.

The order is Tijdeman's (The chairman assignment problem, 1980): behind each place every environment has had its share
of the places so far to within less than one task. So a run of places anywhere is right to within less than two, of two
environments to within one, and where the weights are whole numbers with the sum W, every W-th place to the task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from agentevolver.types import Task, Trajectory
from task_manager.mixture import Curriculum, Mixture
from task_manager.settings import TaskManagerSettings

# Weights are taken as fractions of at most this denominator, so that sums are exact.
FINEST = 10**6


def turns(weights: Mapping[str, float], count: int) -> list[str]:
    """Return whose turn each of `count` places is; of equal claims the first name of `weights` goes first. A weight of
    0 has none.

    Raises ValueError without a weight above 0.
    """
    exact = {name: Fraction(weight).limit_denominator(FINEST) for name, weight in weights.items() if weight > 0}
    exact = {name: weight for name, weight in exact.items() if weight > 0}
    if not exact:
        raise ValueError("no environment has a weight above 0")
    if len(exact) == 1:
        return [*exact] * count
    # Whole numbers from here on: a place is worth `whole`, of which each environment's claim grows by its part.
    unit = math.lcm(*(weight.denominator for weight in exact.values()))
    parts = {name: int(weight * unit) for name, weight in exact.items()}
    whole, states = sum(parts.values()), 2 * len(parts) - 2
    speed = {name: math.lcm(*parts.values()) // part for name, part in parts.items()}
    claims = dict.fromkeys(parts, 0)
    order = []
    for _ in range(count):
        for name, part in parts.items():
            claims[name] += part
        # Whose claim is below whole / states waits; of the others the one whose claim would first become too large.
        ready = [name for name, claim in claims.items() if claim * states >= whole]
        chosen = min(ready, key=lambda name: (states * (whole - claims[name]) - whole) * speed[name])
        claims[chosen] -= whole
        order.append(chosen)
    return order


class _Drawn:
    """What the epochs of one environment are drawn from: its mixture and its curriculum."""

    def __init__(
        self, originals: Sequence[Task], synthetic: Sequence[Task], settings: TaskManagerSettings, name: str
    ) -> None:
        self.mixture = Mixture(
            settings.mixture, [task.task_id for task in originals], [task.task_id for task in synthetic], name
        )
        self.curriculum = Curriculum(settings.curriculum)

    def draw(self) -> list[str]:
        self.curriculum.begin_epoch(self.mixture.epoch)
        return self.mixture.draw(self.curriculum.weight)

    def state_dict(self) -> dict[str, Any]:
        return {"mixture": self.mixture.state_dict(), "curriculum": self.curriculum.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mixture.load_state_dict(state["mixture"])
        self.curriculum.load_state_dict(state["curriculum"])


class Epochs:
    """Draws epochs of tasks, known by the key of `key`.

    An epoch's size stays. Of several environments it is that of all their epochs together; each has its share of it, a
    mixture and a curriculum of its own, and one whose share is more than its tasks repeats them, each before one comes
    a third time.

    Args:
        settings: the section `task_manager`.
        originals, synthetic: the tasks.
        weights: of several environments by name; None: there is one.

    Raises:
        ValueError: there is nothing to draw from, in one of the environments.
    """

    def __init__(
        self,
        settings: TaskManagerSettings,
        originals: Sequence[Task],
        synthetic: Sequence[Task],
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._weights = None if weights is None else {name: weight for name, weight in weights.items() if weight > 0}
        self._drawn: dict[str, _Drawn] = {}
        for name in self._weights or ("",):
            own = [[task for task in of if self.key(task)[0] == name] for of in (originals, synthetic)]
            try:
                self._drawn[name] = _Drawn(own[0], own[1], settings, name)
            except ValueError as error:
                raise ValueError(f"{name}: {error}" if name else str(error)) from error
        self._turns = self._shared_out()

    def __len__(self) -> int:
        return sum(len(drawn.mixture) for drawn in self._drawn.values())

    def key(self, task: Task) -> tuple[str, str]:
        """Return what tells a task from all others: its environment, "" where there is one alone, and its id."""
        return (task.env_type if self._weights is not None else "", task.task_id)

    def draw(self) -> list[tuple[str, str]]:
        """Return the keys of the next epoch's tasks."""
        epochs = {name: iter(drawn.draw()) for name, drawn in self._drawn.items()}
        return [(name, next(epochs[name])) for name in self._turns]

    def add_synthetic(self, tasks: Sequence[Task]) -> None:
        """Let new synthetic tasks take part from the next epoch on."""
        for name, drawn in self._drawn.items():
            drawn.mixture.add_synthetic([task.task_id for task in tasks if self.key(task)[0] == name])

    def record(self, trajectories: Iterable[Trajectory]) -> None:
        """Tell the curricula of a step's trajectories."""
        everything = list(trajectories)
        for name, drawn in self._drawn.items():
            drawn.curriculum.record(one for one in everything if self.key(one.task)[0] == name)

    def curriculum(self, env_type: str) -> Curriculum:
        """Return the curriculum of an environment's tasks."""
        return self._drawn[env_type if self._weights is not None else ""].curriculum

    def mixture(self, env_type: str) -> Mixture:
        """Return what an environment's tasks are drawn by."""
        return self._drawn[env_type if self._weights is not None else ""].mixture

    def metrics(self) -> dict[str, float]:
        """Return what the curricula know; of several environments each under its name."""
        return {
            f"{metric}/{name}" if name else metric: value
            for name, drawn in self._drawn.items()
            for metric, value in drawn.curriculum.metrics().items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what later draws depend on, JSON-ready."""
        if self._weights is None:
            return self._drawn[""].state_dict()
        return {"environments": {name: drawn.state_dict() for name, drawn in self._drawn.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; the shares are those of now. Raises ValueError for a state of other environments."""
        if self._weights is None and "mixture" in state:
            self._drawn[""].load_state_dict(state)
            return
        saved = state.get("environments", {})
        if set(saved) != set(self._drawn):
            was, now = (", ".join(filter(None, names)) or "one environment" for names in (saved, self._drawn))
            raise ValueError(
                f"the checkpoint's epochs are of {was}, those of this run of {now}: keep to its env_service.env_type, "
                "or begin another experiment"
            )
        for name, drawn in self._drawn.items():
            drawn.load_state_dict(saved[name])
        self._turns = self._shared_out()

    def _shared_out(self) -> list[str]:
        """Return whose turn each place of an epoch is, and let each environment's epochs be as large as its share."""
        if self._weights is None:
            return [""] * len(self)
        order = turns(self._weights, len(self))
        for name, drawn in self._drawn.items():
            if not (count := order.count(name)):
                raise ValueError(f"{name}: its weight gives it none of the {len(order)} tasks of an epoch: raise it")
            drawn.mixture.resize(count)
        return order

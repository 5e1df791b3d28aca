"""Epochs of one or several environments: assigns each place to an environment, and to one of its tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from agentevolver.types import Task, Trajectory
from task_manager.mixture import Curriculum, Mixture
from task_manager.settings import TaskManagerSettings

# Largest denominator of a weight: with fractions, sums are exact.
FINEST = 10**6


def assign_places(weights: Mapping[str, float], count: int) -> list[str]:
    """Return the environment of each of `count` places; raises ValueError if no weight is above 0.

    Tijdeman's algorithm (The chairman assignment problem, 1980): at every place, each environment is within one task of
    its share so far. Ties go to the first name in `weights`.
    """
    exact = {name: Fraction(weight).limit_denominator(FINEST) for name, weight in weights.items() if weight > 0}
    exact = {name: weight for name, weight in exact.items() if weight > 0}
    if not exact:
        raise ValueError("no environment has a weight above 0")
    if len(exact) == 1:
        return [*exact] * count
    # Integers from here on: per place, an environment's claim grows by its part of `whole`; being chosen costs `whole`.
    unit = math.lcm(*(weight.denominator for weight in exact.values()))
    parts = {name: int(weight * unit) for name, weight in exact.items()}
    whole, states = sum(parts.values()), 2 * len(parts) - 2
    speed = {name: math.lcm(*parts.values()) // part for name, part in parts.items()}
    claims = dict.fromkeys(parts, 0)
    order = []
    for _ in range(count):
        for name, part in parts.items():
            claims[name] += part
        # Claims below whole / states wait; of the others, the one whose claim would soonest become too large is chosen.
        ready = [name for name, claim in claims.items() if claim * states >= whole]
        chosen = min(ready, key=lambda name: (states * (whole - claims[name]) - whole) * speed[name])
        claims[chosen] -= whole
        order.append(chosen)
    return order


class _Drawn:
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
    """Draws epochs of tasks, identified by `key`; their size is fixed.

    With several environments, `weights` divides the sum of their sizes; an environment whose share exceeds its tasks
    repeats them in turn. Raises ValueError if an environment has nothing to draw from.
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
        """Return (environment, task id); the environment is "" if there is only one."""
        return (task.env_type if self._weights is not None else "", task.task_id)

    def draw(self) -> list[tuple[str, str]]:
        epochs = {name: iter(drawn.draw()) for name, drawn in self._drawn.items()}
        return [(name, next(epochs[name])) for name in self._turns]

    def add_synthetic(self, tasks: Sequence[Task]) -> None:
        for name, drawn in self._drawn.items():
            drawn.mixture.add_synthetic([task.task_id for task in tasks if self.key(task)[0] == name])

    def record(self, trajectories: Iterable[Trajectory]) -> None:
        everything = list(trajectories)
        for name, drawn in self._drawn.items():
            drawn.curriculum.record(one for one in everything if self.key(one.task)[0] == name)

    def curriculum(self, env_type: str) -> Curriculum:
        return self._drawn[env_type if self._weights is not None else ""].curriculum

    def mixture(self, env_type: str) -> Mixture:
        return self._drawn[env_type if self._weights is not None else ""].mixture

    def metrics(self) -> dict[str, float]:
        return {
            f"{metric}/{name}" if name else metric: value
            for name, drawn in self._drawn.items()
            for metric, value in drawn.curriculum.metrics().items()
        }

    def state_dict(self) -> dict[str, Any]:
        if self._weights is None:
            return self._drawn[""].state_dict()
        return {"environments": {name: drawn.state_dict() for name, drawn in self._drawn.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume with the present weights. Raises ValueError if the state belongs to other environments."""
        if self._weights is None and "mixture" in state:
            self._drawn[""].load_state_dict(state)
            return
        saved = state.get("environments", {})
        if set(saved) != set(self._drawn):
            was, now = (", ".join(filter(None, names)) or "one environment" for names in (saved, self._drawn))
            raise ValueError(
                f"the checkpoint has epochs of {was}, this run trains on {now}: restore env_service.env_type, "
                "or start a new experiment"
            )
        for name, drawn in self._drawn.items():
            drawn.load_state_dict(saved[name])
        self._turns = self._shared_out()

    def _shared_out(self) -> list[str]:
        """Resize each environment's epochs to its share; return the environment of each place."""
        if self._weights is None:
            return [""] * len(self)
        order = assign_places(self._weights, len(self))
        for name, drawn in self._drawn.items():
            if not (count := order.count(name)):
                raise ValueError(f"{name}: its weight gives it none of the {len(order)} tasks of an epoch: raise it")
            drawn.mixture.resize(count)
        return order

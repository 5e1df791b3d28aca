"""FrozenLake and Taxi: where one can go from where one is, as Gymnasium's own tables say."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agentevolver.llm.prompts import StepText
from tests.llm.minds.world import Goal, Lesson, Steps, World

LAKE_ACTIONS = ("left", "down", "right", "up")
TAXI_ACTIONS = ("south", "north", "east", "west", "pick up", "drop off")
STANDS = ("R", "G", "Y", "B")
_LAKE = re.compile(
    r"((?:^[SFHGA](?: [SFHGA])+\n)+)You are A, at row (\d+), column (\d+) .*?(You are on (\w)|You are at the goal|You "
    r"fell)",
    re.MULTILINE,
)
_TAXI = re.compile(
    r"The taxi T is at row (\d+), column (\d+) .*? The passenger (?:waits at ([RGYB])|is in the taxi).*? The "
    r"destination is ([RGYB])"
)
_ACTION = re.compile(r"action:\s*(.*?)\s*$", re.IGNORECASE | re.MULTILINE)
_REACH = "Reach the goal without falling into a hole."
_SQUARE = re.compile(r"Walk to the square at row (\d+), column (\d+), and stay dry\.")
_DRIVE = re.compile(r"Drive the taxi to row (\d+), column (\d+)\.")
_PICK = "Pick the passenger up, nothing more."
_DELIVER = "Pick the passenger up and drop them at their destination."


@dataclass(frozen=True, slots=True)
class Lake:
    """A place on a frozen lake; rows are the map as at the start."""

    rows: tuple[str, ...]
    row: int
    column: int

    def moved(self, action: str) -> Lake:
        """Return the place after a move; at the edge, and at an end, it is the same."""
        if self.rows[self.row][self.column] in "HG":
            return self
        down, right = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}[action]
        size = len(self.rows)
        return Lake(self.rows, min(max(self.row + down, 0), size - 1), min(max(self.column + right, 0), size - 1))

    def fits(self, query: str) -> bool:
        """Whether a query's wish is true here."""
        if query == _REACH:
            return self.rows[self.row][self.column] == "G"
        found = _SQUARE.fullmatch(query)
        return (
            found is not None
            and (self.row, self.column) == (int(found[1]), int(found[2]))
            and self.rows[self.row][self.column] != "H"
        )

    def over(self) -> bool:
        """Whether the episode ends here."""
        return self.rows[self.row][self.column] in "HG"


@dataclass(frozen=True, slots=True)
class TaxiPlace:
    """A state of the taxi's world; `passenger` is a stand, or 4 in the taxi."""

    row: int
    column: int
    passenger: int
    destination: int
    delivered: bool = False

    def moved(self, action: str) -> TaxiPlace:
        """Return the state after an action, by Gymnasium's own table."""
        if self.delivered:
            return self
        inner = _taxi_env().unwrapped
        state = inner.encode(self.row, self.column, self.passenger, self.destination)
        ((_, following, reward, ended),) = inner.P[state][TAXI_ACTIONS.index(action)]
        return TaxiPlace(*(int(part) for part in inner.decode(following)), delivered=bool(ended and reward > 0))

    def fits(self, query: str) -> bool:
        """Whether a query's wish is true here."""
        if query == _DELIVER:
            return self.delivered
        if query == _PICK:
            return self.passenger == 4
        found = _DRIVE.fullmatch(query)
        return found is not None and (self.row, self.column) == (int(found[1]), int(found[2]))

    def over(self) -> bool:
        """Whether the episode ends here."""
        return self.delivered


Place = Lake | TaxiPlace


@lru_cache(maxsize=1)
def _taxi_env() -> Any:
    import gymnasium

    env = gymnasium.make("Taxi-v4", disable_env_checker=True)
    env.reset(seed=0)
    return env


def place_in(text: str) -> Place | None:
    """Return the place that a text tells last, None if it tells none."""
    if lakes := list(_LAKE.finditer(text)):
        found = lakes[-1]
        row, column = int(found[2]), int(found[3])
        here = found[5] or ("G" if "goal" in found[4] else "H")
        rows = [line.replace(" ", "") for line in found[1].splitlines()]
        rows[row] = rows[row][:column] + here + rows[row][column + 1 :]
        return Lake(tuple(rows), row, column)
    if taxis := list(_TAXI.finditer(text)):
        found = taxis[-1]
        passenger = STANDS.index(found[3]) if found[3] else len(STANDS)
        ended = "The episode is over" in text[found.end() :] and "Reward: 20" in text[found.end() :]
        return TaxiPlace(int(found[1]), int(found[2]), passenger, STANDS.index(found[4]), delivered=ended)
    return None


@lru_cache(maxsize=512)
def ways(start: Place) -> dict[str, tuple[str, ...]]:
    """Return the queries that can be fulfilled from a place, with the fewest actions each; the beginnings of a way are
    ways."""
    names = LAKE_ACTIONS if isinstance(start, Lake) else TAXI_ACTIONS
    found: dict[str, tuple[str, ...]] = {}
    seen, queue = {start}, deque([(start, ())])
    while queue:
        place, path = queue.popleft()
        if path:
            for query in _told(place):
                found.setdefault(query, path)
        if place.over():
            continue
        for name in names:
            following = place.moved(name)
            is_dead = isinstance(following, Lake) and following.rows[following.row][following.column] == "H"
            if following not in seen and not is_dead:
                seen.add(following)
                queue.append((following, (*path, name)))
    return found


def _told(place: Place) -> list[str]:
    if isinstance(place, Lake):
        if place.over():
            return [_REACH]
        return [f"Walk to the square at row {place.row}, column {place.column}, and stay dry."]
    if place.delivered:
        return [_DELIVER]
    told = [_PICK] if place.passenger == 4 else [f"Drive the taxi to row {place.row}, column {place.column}."]
    return told


class GymnasiumWorld(World):
    """Walks and drives. What is explored is the way from the start, so goals are those that lie on it."""

    env_type = "gymnasium"
    lessons = (
        Lesson("when there is ice to "
               "cross", "Look at the map first, plan a way over F squares only, and take one step in each message.",
               "Walk straight to the goal, holes are only drawn."),
        Lesson("when the passenger is to be "
               "fetched", "Drive to the passenger's own stand before you pick up, anywhere else it costs ten.",
               "Pick up anywhere, the passenger comes to the taxi."),
        Lesson("when a move changes nothing", "There is an edge or a wall, so go another way round.",
               "Repeat the move until it works."),
    )  # fmt: skip

    def recognises(self, opening: str) -> bool:
        return "frozen lake" in opening or "You drive a taxi" in opening

    def first_look(self, steps: Steps) -> str | None:
        return None

    def start(self, opening: str, steps: Steps) -> Place | None:
        """Return where the episode begins: as the opening tells it, else before the first step that left everything as
        it was."""
        if (place := place_in(opening)) is not None:
            return place
        if steps and steps[0].index == 0 and self.canonical(steps[0].action) in ("left", "drop off"):
            return place_in(steps[0].observation)
        return None

    def look(self, opening: str) -> str:
        """Return an action that changes nothing at the start: on a lake it is in the upper left corner, a taxi is
        empty."""
        return "action: left" if "frozen lake" in opening else "action: drop off"

    def goals(self, opening: str, steps: Steps) -> list[Goal]:
        start = self.start(opening, steps)
        if start is None:
            return []
        return [
            Goal(_kind(query), query, tuple(f"action: {name}" for name in path), changes=True)
            for query, path in ways(start).items()
        ]

    def goal_of(self, query: str, opening: str, steps: Steps) -> Goal | None:
        """The way is known where the start is; without it there is a goal all the same."""
        wanted = query.split("\n")[0].strip()
        if wanted not in (_REACH, _PICK, _DELIVER) and not _SQUARE.fullmatch(wanted) and not _DRIVE.fullmatch(wanted):
            return None
        start = place_in(query) or self.start(opening, steps)
        path = ways(start).get(wanted, ()) if start is not None else ()
        return Goal(_kind(wanted), wanted, tuple(f"action: {name}" for name in path), changes=True)

    def answer(self, goal: Goal, observations: Sequence[str]) -> str | None:
        return None

    def closing(self, answer: str | None) -> str | None:
        return "action: done"

    def answered(self, action: str) -> str | None:
        return "" if self.canonical(action) == "done" else None

    def solution(self, goal: Goal, answer: str | None) -> list[str]:
        """The ice's goal and the passenger's end the episode themselves."""
        return list(goal.actions) if goal.query in (_REACH, _DELIVER) else super().solution(goal, answer)

    def canonical(self, action: str) -> str:
        found = _ACTION.findall(action)
        return (found[-1] if found else action).strip().lower()

    def call(self, action: str) -> tuple[str, dict[str, Any]] | None:
        return "act", {"action": self.canonical(action)}

    def refused(self, step: StepText) -> bool:
        return "is not an action" in step.observation or "names" in step.observation.split("\n")[0]

    def matches(self, goal: Goal, steps: Steps) -> list[StepText] | None:
        """What was walked from the start counts, behind a first look that changed nothing."""
        said = [self.canonical(step.action) for step in steps]
        wanted = [self.canonical(action) for action in goal.actions]
        skipped = 1 if said and wanted and said[0] in ("left", "drop off") and said[0] != wanted[0] else 0
        return list(steps[skipped : skipped + len(wanted)]) if said[skipped : skipped + len(wanted)] == wanted else None

    def holds(self, goal: Goal, steps: Steps) -> bool:
        last = next((place for step in reversed(steps) if (place := place_in(step.observation)) is not None), None)
        return last is not None and last.fits(goal.query)

    def credits(self, goal: Goal | None, steps: Steps, *, succeeded: bool) -> dict[int, bool]:
        """Of a success, the steps that led somewhere else."""
        places = [place_in(step.observation) for step in steps]
        before = [self.start("", steps), *places]
        return {step.index: succeeded and now != then for step, now, then in zip(steps, places, before, strict=False)}

    def explore(self, opening: str, steps: Steps, rng: random.Random) -> tuple[str, str]:
        here = place_in(steps[-1].observation) if steps else self.start(opening, steps)
        if here is None:
            return "I look where I am.", self.look(opening)
        paths = ways(here)
        path = paths.get(_REACH) or paths.get(_DELIVER)
        if not path:
            return "I wander.", f"action: {rng.choice(LAKE_ACTIONS if isinstance(here, Lake) else TAXI_ACTIONS)}"
        return "I go on towards the end of the way.", f"action: {path[0]}"

    def wrong(self, goal: Goal, solution: Sequence[str], rng: random.Random) -> list[str]:
        acts = [action for action in solution if self.answered(action) is None]
        return [*acts[:-1], "action: done"]

    def right(self, seed_task_id: str, query: str, solution: Sequence[str]) -> bool:
        from env_service.environments.gymnasium.env import GymnasiumEnv

        env = GymnasiumEnv(seed_task_id, "truth", {"is_open_query": True, "max_steps": len(solution) + 1})
        try:
            told = ""
            for action in solution:
                result = env.step({"role": "assistant", "content": action})
                told += result["state"][0]["content"] + "\n"
                if result["is_terminated"]:
                    break
        finally:
            env.close()
        place = place_in(told)
        return place is not None and place.fits(query.split("\n")[0].strip())


def _kind(query: str) -> str:
    return {_REACH: "reach", _PICK: "pick", _DELIVER: "deliver"}.get(query, query.split()[0].lower())


PLAYER = GymnasiumWorld()

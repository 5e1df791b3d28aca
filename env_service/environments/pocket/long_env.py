"""PocketWorld over a long horizon: a chain of goals, each given as the answer to the previous one's `done`.

A goal is graded when it ends. The world is then set to the state after its reference solution, so a mistake costs one
goal. Manuals read and logins stay. Ids are `long.kSITE.SEED`; goals are drawn from pocket's families, each at most
once, until the reference needs `MIN_CALLS` calls. Each thing and person occurs in one row only, so wordings are
unambiguous.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from env_service.base import Message, StepResult
from env_service.environments.pocket.calls import CallError, PocketCall, Syntax
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.families import FAMILIES, Family
from env_service.environments.pocket.grading import score
from env_service.environments.pocket.quirks import adapt
from env_service.environments.pocket.tasks import (
    HELD_OUT_WORDING_FROM,
    OPEN,
    read_list_params,
    split_world_id,
    world_task_ids,
)
from env_service.environments.pocket.world import Facts, PocketWorld, Tables

LONG = "long"
MIN_CALLS = 56
SIZES = {"train": 600, "dev": 48, "test": 48, "hard": 48}
_DRAWS = 20  # of one family, before another takes its place
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class LongGoal:
    """One goal of a chain. `solution` ends with `done` and relies on the manuals and logins of earlier goals. `start`
    and `goal` are the facts before and after it, `tables` the state after it; `answer` is None if none is asked for."""

    family: str
    query: str
    solution: tuple[PocketCall, ...]
    answer: str | None
    start: Facts
    goal: Facts
    tables: Tables


@dataclass(frozen=True, slots=True)
class GoalChain:
    id: str
    site: int
    seed: int
    world_seed: str
    goals: tuple[LongGoal, ...]

    @property
    def calls(self) -> int:
        return sum(len(goal.solution) for goal in self.goals)

    def world(self, syntax: Syntax = "compact") -> PocketWorld:
        return PocketWorld(self.site, self.world_seed, syntax)


@lru_cache(maxsize=1024)
def make_chain(task_id: str) -> GoalChain:
    """Build the chain of an id (about 10 ms); raises ValueError for an unknown or open id."""
    kind, site, seed = split_world_id(task_id, LONG)
    if kind == OPEN:
        raise ValueError(f"task id {task_id!r} names a world without a task; ask for it with is_open_query")
    for attempt in range(_ATTEMPTS):
        world_seed = f"{LONG}-{seed}-{attempt}"
        rng = random.Random(f"pocket-chain-{task_id}-{attempt}")
        wordings = [2 if seed >= HELD_OUT_WORDING_FROM else rng.randrange(2) for _ in FAMILIES]
        goals = _goals(PocketWorld(site, world_seed), wordings, rng)
        if sum(len(goal.solution) for goal in goals) >= MIN_CALLS:
            return GoalChain(task_id, site, seed, world_seed, tuple(goals))
    raise RuntimeError(f"no chain of {MIN_CALLS} calls for task {task_id!r} in {_ATTEMPTS} draws")


def _goals(world: PocketWorld, wordings: list[int], rng: random.Random) -> list[LongGoal]:
    """Draw goals until their solutions have enough calls, or no family suits the world any more."""
    goals, before = list[LongGoal](), list[PocketCall]()
    for name, wording in zip(rng.sample(sorted(FAMILIES), len(FAMILIES)), wordings, strict=True):
        for _ in range(_DRAWS):
            drawn = _draw(FAMILIES[name], wording, world, before, rng)
            if drawn is not None:
                world, goal = drawn
                goals.append(goal)
                before += goal.solution
                break
        if len(before) >= MIN_CALLS:
            break
    return goals


def _draw(
    family: Family, wording: int, world: PocketWorld, before: list[PocketCall], rng: random.Random
) -> tuple[PocketWorld, LongGoal] | None:
    """Draw a goal and return it with the world after its solution; None if it is unreachable or its wording
    ambiguous."""
    draft = family.make(world.tables, rng)
    if draft is None:
        return None
    plan = (*draft.plan, PocketCall("done", () if draft.answer is None else (draft.answer,)))
    solution = adapt(plan, world.quirks, world.pin, before)
    after = copy.deepcopy(world)
    try:
        for call in solution:
            after.carry_out(call)
    except CallError:
        return None
    after.answer = None
    if not _is_clear(after.tables):
        return None
    query = family.wordings[wording].format(**draft.slots)
    start, goal = world.tables.facts(), after.tables.facts()
    return after, LongGoal(family.name, query, tuple(solution), draft.answer, start, goal, copy.deepcopy(after.tables))


def _is_clear(tables: Tables) -> bool:
    rows: Iterable[dict[str, Any]] = (tables.notes, tables.meetings, tables.mails, tables.orders)
    return all(len({row[0] for row in table.values()}) == len(table) for table in rows)


def long_task_ids(split: str, n: int | None = None) -> list[str]:
    """Return the first `n` ids of a split; see `world_task_ids`."""
    return world_task_ids(split, LONG, SIZES, n, "long tasks")


_VERBOSE = (
    "\n\nThere are several tasks, one after the other: when you call done I give you the next one, until there "
    "is none left."
)


class PocketLongEnv(PocketEnv):
    """A chain of goals in one world; parameters are those of pocket, with `slack` for each goal."""

    def _begin(self) -> None:
        kind, site, seed = split_world_id(self.task_id, LONG)
        self.chain: GoalChain | None = None if kind == OPEN else make_chain(self.task_id)
        self.world = (
            self.chain.world(self._settings.syntax)
            if self.chain
            else PocketWorld(site, f"open-{seed}", self._settings.syntax)
        )
        if self._settings.is_open_query:
            self.chain = None
        self.task = None
        self.grades: list[float] = []
        self.max_steps = self._settings.explore_steps
        if self.chain:
            self.max_steps = self.chain.calls + self._settings.slack * len(self.chain.goals)
        self.steps = 0
        self.errors = 0

    def _solution(self) -> list[PocketCall]:
        return [call for goal in self.chain.goals for call in goal.solution] if self.chain else []

    @property
    def is_open(self) -> bool:
        return self.chain is None

    def _opening(self) -> tuple[list[Message], dict[str, Any]]:
        first = self.chain.goals[0] if self.chain else None
        messages = self._opening_messages(first.query if first else None)
        if self.chain and self._settings.verbose:
            messages[0]["content"] += _VERBOSE
        facts = {"query": first.query, "goals": len(self.chain.goals)} if first and self.chain else {}
        return messages, facts

    def _carry_out(self, call: PocketCall) -> str:
        answer = super()._carry_out(call)
        return self._end_goal(self.chain, answer) if self.chain and self.world.answer is not None else answer

    def _end_goal(self, chain: GoalChain, goodbye: str) -> str:
        """Grade the goal, correct the world, and return the next goal's wording, or `goodbye` after the last."""
        ended = chain.goals[len(self.grades)]
        self.grades.append(score(ended, self.world))
        self.world.tables = copy.deepcopy(ended.tables)
        if len(self.grades) == len(chain.goals):
            return goodbye
        self.world.answer = None
        return chain.goals[len(self.grades)].query

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Carry out one call; `info` also has `goals_ended` and `goals_solved`. The reward is the increase of
        `evaluate`."""
        before = self.evaluate()
        result = super().step(action, params)
        result["reward"] = self.evaluate() - before
        result["info"] |= {"goals_ended": len(self.grades), "goals_solved": round(sum(self.grades))}
        return result

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Grade the goals ended so far: sparse 1 if the whole chain is solved, else 0; dense the share solved; 0
        without a task."""
        sparse = self._settings.updated(params).sparse
        if not self.chain:
            return 0.0
        share = sum(self.grades) / len(self.chain.goals)
        return float(share == 1.0) if sparse else share

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        params = params or {}
        if "levels" in params:
            raise ValueError("the long tasks of pocket have no levels, remove the parameter; the query list takes n")
        return long_task_ids(split, read_list_params(params)[0])

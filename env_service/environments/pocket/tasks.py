"""Tasks and splits. World, wording and solution follow from the id, `family.kSITE.SEED`.

The seed decides the split: below 50,000 train, then dev, test, hard in blocks of 10,000. Hard has the held-out wording.
An `open.` id names a world without a task.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from env_service.environments.pocket.calls import PocketCall, Syntax
from env_service.environments.pocket.families import FAMILIES, LEVELS, TaskDraft
from env_service.environments.pocket.quirks import HARD_SITES, TEST_SITES, TRAIN_SITES, adapt, quirks_of
from env_service.environments.pocket.world import Facts, PocketWorld

OPEN = "open"
_ID = re.compile(r"([a-z_]+)\.k(0|[1-9]\d?)\.(0|[1-9]\d{0,4})")


@dataclass(frozen=True, slots=True)
class Split:
    """A split: its sites, its seeds, and its default number of tasks."""

    sites: tuple[int, ...]
    first_seed: int
    n_seeds: int
    size: int


SPLITS: dict[str, Split] = {
    "train": Split(TRAIN_SITES, 0, 50_000, 2400),
    "dev": Split(TRAIN_SITES, 50_000, 10_000, 144),
    "test": Split(TEST_SITES, 60_000, 10_000, 144),
    "hard": Split(HARD_SITES, 70_000, 10_000, 144),
}
HELD_OUT_WORDING_FROM = SPLITS["hard"].first_seed


@dataclass(frozen=True, slots=True)
class WorldTask:
    """Everything that an id determines. `plan` and `solution` end with `done`; `answer` is None if none is asked for.

    `start` and `goal` are the facts before and after the reference solution.
    """

    id: str
    family: str
    level: int
    site: int
    seed: int
    world_seed: str
    query: str
    plan: tuple[PocketCall, ...]
    solution: tuple[PocketCall, ...]
    answer: str | None
    start: Facts
    goal: Facts

    def world(self, syntax: Syntax = "compact") -> PocketWorld:
        return PocketWorld(self.site, self.world_seed, syntax)


def split_world_id(task_id: str, kind: str) -> tuple[str, int, int]:
    """Parse an id of a world with one kind of task into (`kind` or "open", site, seed); raises ValueError."""
    match = _ID.fullmatch(task_id)
    if match is None or match[1] not in (kind, OPEN):
        raise ValueError(f"task id {task_id!r} is not of the form {kind}.kSITE.SEED, like {kind}.k3.17")
    quirks_of(int(match[2]))
    return match[1], int(match[2]), int(match[3])


def world_task_ids(split: str, kind: str, sizes: Mapping[str, int], n: int | None, noun: str) -> list[str]:
    """Return the first `n` ids of a split (of `sizes`, unless given) of such a world; sites come in shuffled rounds.
    Raises ValueError for an unknown split or a size it cannot give."""
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}; splits are {', '.join(SPLITS)}")
    spec = SPLITS[split]
    count = sizes[split] if n is None else n
    if not 0 < count <= spec.n_seeds:
        raise ValueError(f"n={count}: split {split!r} has 1 to {spec.n_seeds} {noun}")
    return [nth_id(split, spec, kind, i) for i in range(count)]


def split_id(task_id: str) -> tuple[str, int, int]:
    """Parse an id into (family or "open", site, seed); raises ValueError."""
    match = _ID.fullmatch(task_id)
    if match is None:
        raise ValueError(f"task id {task_id!r} is not of the form family.kSITE.SEED, like note_del.k3.17")
    family, site, seed = match[1], int(match[2]), int(match[3])
    if family != OPEN and family not in FAMILIES:
        raise ValueError(
            f"task id {task_id!r}: there is no family {family!r}; families are {', '.join(FAMILIES)}, and open"
        )
    quirks_of(site)
    return family, site, seed


@lru_cache(maxsize=4096)
def make_task(task_id: str) -> WorldTask:
    """Build the task of an id (about 0.2 ms); raises ValueError for an unknown or open id."""
    family, site, seed = split_id(task_id)
    if family == OPEN:
        raise ValueError(f"task id {task_id!r} names a world without a task; ask for it with is_open_query")
    spec = FAMILIES[family]
    for attempt in range(50):
        world_seed = f"{family}-{seed}-{attempt}"
        world = PocketWorld(site, world_seed)
        rng = random.Random(f"pocket-task-{task_id}-{attempt}")
        wording = 2 if seed >= HELD_OUT_WORDING_FROM else rng.randrange(2)
        draft = spec.make(world.tables, rng)
        if draft is not None:
            return _finish(task_id, world, world_seed, draft, spec.wordings[wording])
    raise RuntimeError(f"no world suits task {task_id!r} in 50 draws; the family {family!r} asks for too much")


def _finish(task_id: str, world: PocketWorld, world_seed: str, draft: TaskDraft, wording: str) -> WorldTask:
    family, site, seed = split_id(task_id)
    plan = (*draft.plan, PocketCall("done", () if draft.answer is None else (draft.answer,)))
    solution = tuple(adapt(plan, world.quirks, world.pin))
    start = world.tables.facts()
    for call in solution:
        world.carry_out(call)
    return WorldTask(
        id=task_id,
        family=family,
        level=FAMILIES[family].level,
        site=site,
        seed=seed,
        world_seed=world_seed,
        query=wording.format(**draft.slots),
        plan=plan,
        solution=solution,
        answer=draft.answer,
        start=start,
        goal=world.tables.facts(),
    )


def open_world(task_id: str, syntax: Syntax = "compact") -> PocketWorld:
    """Return the world of an exploration: a task's start state, or that of an `open.` id."""
    family, site, seed = split_id(task_id)
    return PocketWorld(site, f"open-{seed}", syntax) if family == OPEN else make_task(task_id).world(syntax)


def task_ids(split: str, n: int | None = None, levels: tuple[int, ...] = LEVELS) -> list[str]:
    """Return the first `n` ids of a split; any prefix is stratified by level and family, and sites come in shuffled
    rounds. Raises ValueError."""
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}; splits are {', '.join(SPLITS)}")
    spec = SPLITS[split]
    by_level = [[f.name for f in FAMILIES.values() if f.level == level] for level in LEVELS if level in levels]
    families = [name for rank in zip(*by_level, strict=True) for name in rank]
    if not families or not set(levels) <= set(LEVELS):
        raise ValueError(f"levels {levels!r}: give some of {LEVELS}")
    count = spec.size * len(families) // len(FAMILIES) if n is None else n
    if not 0 < count <= spec.n_seeds * len(families):
        raise ValueError(f"n={count}: split {split!r} has 1 to {spec.n_seeds * len(families)} tasks on these levels")
    return [nth_id(split, spec, families[i % len(families)], i // len(families)) for i in range(count)]


def nth_id(split: str, spec: Split, family: str, index: int) -> str:
    sites = list(spec.sites)
    random.Random(f"pocket-{split}-{family}-{index // len(sites)}").shuffle(sites)
    return f"{family}.k{sites[index % len(sites)]}.{spec.first_seed + index}"


def read_list_params(params: dict[str, Any]) -> tuple[int | None, tuple[int, ...]]:
    """Read `n` and `levels` of a query-list request."""
    unknown = set(params) - {"n", "levels"}
    if unknown:
        raise ValueError(f"unknown parameter {sorted(unknown)} of the query list; it takes n and levels")
    n, levels = params.get("n"), params.get("levels", LEVELS)
    if n is not None and (isinstance(n, bool) or not isinstance(n, int)):
        raise ValueError(f"n={n!r} is not a whole number")
    if not isinstance(levels, list | tuple) or not all(isinstance(level, int) for level in levels):
        raise ValueError(f"levels={levels!r} is not a list of whole numbers")
    return n, tuple(levels)

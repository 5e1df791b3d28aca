"""Task ids and splits: `<environment id>:seed=<number>`.

Seeds that start the same task count once, and a task's split follows a hash of the start itself, so that no start of
train comes back in val or test under another seed.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from env_service.environments.gymnasium.world import World

SPLITS = {"train": range(0, 60), "val": range(60, 70), "test": range(70, 100)}
CANDIDATE_SEEDS = 600
_ID = re.compile(r"(?P<world>[\w./-]{1,100}):seed=(?P<seed>0|[1-9]\d{0,8})")


def read_task_id(task_id: str, worlds: Mapping[str, World]) -> tuple[World, int]:
    """Return world and seed of a task id; raise ValueError if it has another form or names a world that is not
    described."""
    match = _ID.fullmatch(task_id)
    if match is None:
        example = f"{next(iter(worlds))}:seed=3"
        raise ValueError(
            f"task id {task_id[:120]!r} has not the form `<environment id>:seed=<number>`, for example `{example}`"
        )
    return _world(match["world"], worlds), int(match["seed"])


def task_ids(split: str, params: Mapping[str, Any] | None, worlds: Mapping[str, World]) -> list[str]:
    """Return the ids of a split, world by world; `params["worlds"]` picks worlds. Raises ValueError for an unknown
    name."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; gymnasium has: {', '.join(SPLITS)}")
    options = dict(params or {})
    chosen = options.pop("worlds", list(worlds))
    if options:
        raise ValueError(
            f"unknown parameter `{next(iter(options))}` for get_query_list of the gymnasium environment; known: worlds"
        )
    if isinstance(chosen, str) or not isinstance(chosen, Sequence) or not chosen:
        raise ValueError(f"`worlds` is {chosen!r}; give a list with some of: {', '.join(worlds)}")
    picked = [_world(str(name), worlds) for name in chosen]
    return [f"{world.env_id}:seed={seed}" for world in picked for seed in _seeds(world)[split]]


def _world(name: str, worlds: Mapping[str, World]) -> World:
    if name not in worlds:
        near = difflib.get_close_matches(name, worlds, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(worlds)}"
        raise ValueError(f"{name!r} is not a world of this gymnasium environment; {hint}")
    return worlds[name]


@lru_cache(maxsize=64)
def _seeds(world: World) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    for seed, key in enumerate(world.start_keys(range(CANDIDATE_SEEDS))):
        if key in seen:
            continue
        seen.add(key)
        bucket = int.from_bytes(hashlib.sha256(f"{world.env_id}/{key}".encode()).digest()[:8], "big") % 100
        found[next(split for split, buckets in SPLITS.items() if bucket in buckets)].append(seed)
    return found

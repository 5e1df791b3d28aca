"""Splits of the tasks, by scenario.

Base_k, long_context_k, miss_func_k and miss_param_k share one scenario, so a hash of k decides the split of all four.
AgentEvolver's split (half of each category, in file order) is there for comparison; it has two parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentevolver.utils.names import did_you_mean
from env_service.environments.bfcl.package import CATEGORIES, BfclTask


def check_names(params: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raise ValueError if `params` has a name outside `known`; `where` names their user in the message."""
    names = list(known)
    for name in params:
        if name not in names:
            hint = did_you_mean(str(name), names, f"known: {', '.join(names)}", quote="`")
            raise ValueError(f"unknown parameter `{name}` for {where} of the bfcl environment; {hint}")


def read_flag(params: Mapping[str, Any], name: str, default: bool) -> bool:
    value = params.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"parameter `{name}` is {value!r}; it must be true or false")
    return value


def read_count(params: Mapping[str, Any], name: str, default: int, largest: int) -> int:
    """Return a whole-number parameter in 1..`largest`."""
    value = params.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise ValueError(f"parameter `{name}` is {value!r}; it must be a whole number from 1 to {largest}")
    return value


SPLITS_BY_SCENARIO = {"train": 0.6, "val": 0.1, "test": 0.3}
SPLITS_OF_AGENTEVOLVER = ("train", "val")
FULL_SPLIT = "full"
_PREFIX = "multi_turn_"


def split_task_ids(tasks: Mapping[str, BfclTask], split: str, params: Mapping[str, Any] | None = None) -> list[str]:
    """Return the ids of a split, category by category. `params["categories"]` chooses categories, `params["split_by"]`
    is "scenario" or "agentevolver". Raises ValueError."""
    options = dict(params or {})
    check_names(options, ("categories", "split_by"), "get_query_list")
    chosen = _categories(options.get("categories"))
    by_category = {category: [task for task in tasks.values() if task.category == category] for category in chosen}
    if split == FULL_SPLIT:
        return [task.task_id for category in chosen for task in by_category[category]]
    split_by = options.get("split_by", "scenario")
    if split_by == "agentevolver":
        return [task.task_id for category in chosen for task in _half(by_category[category], split)]
    if split_by != "scenario":
        raise ValueError(f"`split_by` is {split_by!r}; it can be 'scenario' or 'agentevolver'")
    members = _scenarios({task.scenario for task in tasks.values()}, split)
    return [task.task_id for category in chosen for task in by_category[category] if task.scenario in members]


def _categories(value: Any) -> list[str]:
    if value is None:
        return list(CATEGORIES)
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ValueError(f"`categories` is {value!r}; give a list with some of: {', '.join(CATEGORIES)}")
    wanted = {str(name) if str(name).startswith(_PREFIX) else f"{_PREFIX}{name}" for name in value}
    unknown = sorted(wanted.difference(CATEGORIES))
    if unknown:
        raise ValueError(f"unknown BFCL categories {unknown}; there are: {', '.join(CATEGORIES)}")
    return [category for category in CATEGORIES if category in wanted]


def _half(tasks: Sequence[BfclTask], split: str) -> Sequence[BfclTask]:
    if split not in SPLITS_OF_AGENTEVOLVER:
        raise ValueError(
            f"unknown split {split!r}; split_by='agentevolver' has: {', '.join(SPLITS_OF_AGENTEVOLVER)}, {FULL_SPLIT}"
        )
    middle = len(tasks) // 2
    return tasks[:middle] if split == "train" else tasks[middle:]


def _scenarios(scenarios: Iterable[int], split: str) -> set[int]:
    if split not in SPLITS_BY_SCENARIO:
        raise ValueError(f"unknown split {split!r}; bfcl has: {', '.join(SPLITS_BY_SCENARIO)}, {FULL_SPLIT}")
    ordered = sorted(scenarios, key=lambda number: hashlib.sha256(f"bfcl-multi-turn/{number}".encode()).digest())
    names = list(SPLITS_BY_SCENARIO)
    position = names.index(split)
    start = sum(SPLITS_BY_SCENARIO[name] for name in names[:position])
    return set(ordered[round(start * len(ordered)) : round((start + SPLITS_BY_SCENARIO[split]) * len(ordered))])

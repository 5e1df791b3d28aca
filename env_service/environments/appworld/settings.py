"""The parameters of an AppWorld instance, checked on arrival: an unknown key or a wrong value raises ValueError and
names the fix."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from agentevolver.utils.names import did_you_mean

SPLITS = {
    "train": "train",
    "dev": "dev",
    "val": "dev",
    "test": "test_normal",
    "test_normal": "test_normal",
    "test_challenge": "test_challenge",
}
MAX_TIMEOUT_S = 100.0


@dataclass(frozen=True, slots=True)
class AppworldParams:
    """Parameters of `create`; README.md describes them."""

    simple: bool = False
    native_tools: bool = False
    prompt: bool = True
    is_open_query: bool = False
    sparse: bool = True
    max_interactions: int = 1000
    timeout_s: float = 60.0
    max_output_chars: int = 8000
    random_seed: int = 100

    def updated(self, params: dict[str, Any] | None) -> AppworldParams:
        known = {f.name: type(getattr(self, f.name)) for f in fields(self)}
        for key, value in (params or {}).items():
            if key not in known:
                raise ValueError(f"unknown parameter {key!r} of appworld{_hint(key, known)}")
            if not _fits(value, known[key]):
                raise ValueError(f"parameter {key}={value!r} must be of type {known[key].__name__}")
        made = replace(self, **(params or {}))
        if made.max_interactions < 1 or made.max_output_chars < 200:
            raise ValueError(
                f"max_interactions={made.max_interactions} must be 1 or more, "
                f"max_output_chars={made.max_output_chars} 200 or more"
            )
        if not 1 <= made.timeout_s <= MAX_TIMEOUT_S:
            raise ValueError(f"timeout_s={made.timeout_s} must be between 1 and {MAX_TIMEOUT_S:g}")
        return made


def _fits(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is kind


def _hint(key: str, known: dict[str, type]) -> str:
    return "; " + did_you_mean(key, known, f"known are {', '.join(sorted(known))}")


def split_name(split: str) -> str:
    if split not in SPLITS:
        raise ValueError(f"appworld has no split {split!r}; known are {', '.join(SPLITS)}")
    return SPLITS[split]


def difficulty_of(params: dict[str, Any] | None) -> int | None:
    """Return the parameter `difficulty`, 1 to 3, or None."""
    params = params or {}
    for key in params:
        if key != "difficulty":
            raise ValueError(f"unknown parameter {key!r} of the appworld task list; known is difficulty (1, 2 or 3)")
    difficulty = params.get("difficulty")
    if difficulty is not None and (type(difficulty) is not int or difficulty not in (1, 2, 3)):
        raise ValueError(f"difficulty={difficulty!r} must be 1, 2 or 3")
    return difficulty

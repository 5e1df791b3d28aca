"""Feedback levels: how much an environment says about a refused call.

`plain` is the environment's own message, `schema` adds the tool's usage, `recovery` also the next step. The levels
above `plain` are for training only, so that validation stays comparable.
"""

from __future__ import annotations

from typing import Literal, get_args

Feedback = Literal["plain", "schema", "recovery"]
FEEDBACKS: tuple[Feedback, ...] = get_args(Feedback)
FEEDBACK = "feedback"
"""Name of the parameter of `create`."""
HINT = " | hint: "
"""Separator between an environment's own message and the additions."""


def read_feedback(value: object) -> Feedback:
    """Return a level; raises ValueError."""
    for known in FEEDBACKS:
        if value == known:
            return known
    raise ValueError(f"parameter feedback={value!r} must be one of {', '.join(FEEDBACKS)}")


def told(refusal: str, level: Feedback, *, usage: str, next_step: str) -> str:
    """Return a refusal with the level's additions; empty parts add nothing."""
    parts = {"plain": (), "schema": (usage,), "recovery": (usage, next_step)}[level]
    hint = " , ".join(part for part in parts if part)
    return f"{refusal}{HINT}{hint}" if hint else refusal

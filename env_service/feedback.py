"""Feedback levels: how much an environment says of a call that it refused.

`plain` is the environment's own word and nothing else. `schema` adds how the tool is called, `recovery` also what to do
next. The levels above `plain` are for training: what validation measures must not be told more than it is elsewhere.
"""

from __future__ import annotations

from typing import Literal, get_args

Feedback = Literal["plain", "schema", "recovery"]
FEEDBACKS: tuple[Feedback, ...] = get_args(Feedback)
FEEDBACK = "feedback"
"""The name of the parameter."""
HINT = " | hint: "
"""Stands between an environment's own word and what is added."""


def read_feedback(value: object) -> Feedback:
    """Return a level; raises ValueError for another value."""
    for known in FEEDBACKS:
        if value == known:
            return known
    raise ValueError(f"parameter feedback={value!r} must be one of {', '.join(FEEDBACKS)}")


def told(refusal: str, level: Feedback, *, usage: str, next_step: str) -> str:
    """Return a refusal with what a level adds; empty parts add nothing."""
    parts = {"plain": (), "schema": (usage,), "recovery": (usage, next_step)}[level]
    hint = " , ".join(part for part in parts if part)
    return f"{refusal}{HINT}{hint}" if hint else refusal

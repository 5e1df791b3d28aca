"""Hints, references, replays and step labels by the id of a task of PocketWorld, for tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.grading import Change, Path, diff
from env_service.environments.pocket.oracle import label_steps, reference
from env_service.environments.pocket.quirks import site_hint_parts
from env_service.environments.pocket.tasks import split_id
from env_service.environments.pocket.wordings import PHRASES
from env_service.environments.pocket.world import Facts

__all__ = ["hint", "hint_parts", "label_steps", "lesson", "reference", "replay", "snapshot"]

_LESSONS: tuple[tuple[str, tuple[str, str]], ...] = (
    (r"err read doc \S+ first", ("guard", "doc")),
    (r"err add (yes at the end|\"confirm\": \"yes\")", ("guard", "yes")),
    (r"err use bank\.pay (\{\"name\": NAME, |NAME )", ("pay", "name")),
    (r"err use bank\.pay (\{\"amount\": AMOUNT, |AMOUNT )", ("pay", "amount")),
    (r"err login first", ("login", "pin")),
    (r"err use cal\.add (\{\"name\": NAME, |NAME )", ("plan", "name")),
    (r"err use cal\.add (\{\"day\": DAY, |DAY )", ("plan", "day")),
    (r"err find \S+ first", ("look", "first")),
)


def lesson(observation: str) -> str | None:
    """The part of a site's hint that an error observation teaches, or None if it teaches none."""
    for pattern, quirk in _LESSONS:
        if re.match(pattern, observation):
            return PHRASES[quirk]
    return None


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of carrying out some messages from a task's start state; calls after the end are left out."""

    sparse: float
    dense: float
    observations: tuple[str, ...]
    changes: dict[Path, Change]
    finished: bool


def replay(task_id: str, actions: Sequence[str], *, slack: int | None = None) -> Replay:
    """Carry out assistant messages in a fresh world of a task.
    Without `slack` no step budget applies. Raises ValueError."""
    env = PocketEnv(task_id, "replay", {"slack": len(actions) if slack is None else slack})
    seen = []
    for text in actions:
        if env.is_over:
            break
        seen.append(env.step({"role": "assistant", "content": text})["state"][0]["content"])
    changes = diff(PocketEnv(task_id, "start").world.tables.facts(), snapshot(env))
    return Replay(
        env.evaluate(), env.evaluate(params={"sparse": False}), tuple(seen), changes, env.world.answer is not None
    )


def snapshot(env: PocketEnv) -> Facts:
    """The graded state of a running episode, to be compared with `grading.diff`."""
    return env.world.tables.facts()


def hint_parts(task_id: str) -> dict[str, str]:
    """The hint of a task's site, quirk by quirk; raises ValueError for a wrong id."""
    _, site, _ = split_id(task_id)
    return site_hint_parts(site)


def hint(task_id: str) -> str:
    """One line that says all of a site's quirks; raises ValueError for a wrong id."""
    return " ; ".join(hint_parts(task_id).values())

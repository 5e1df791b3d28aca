"""Oracle of PocketWorld for tests and benchmarks: true hints, true step labels, replays and state differences.

The agent never sees any of it.

A hint states a site's quirks and nothing about the task, so it is exactly what a perfect summary of earlier failures on
the site says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from env_service.base import Message
from env_service.environments.pocket.calls import CallError, PocketCall, Syntax, parse
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.grading import Change, Path, diff, score
from env_service.environments.pocket.quirks import site_hint_parts
from env_service.environments.pocket.tasks import WorldTask, make_task, split_id
from env_service.environments.pocket.wordings import PHRASES
from env_service.environments.pocket.world import Facts, PocketWorld

Label = Literal["GOOD", "BAD"]
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


def hint_parts(task_id: str) -> dict[str, str]:
    """The hint of a task's site, quirk by quirk; raises ValueError for a wrong id."""
    _, site, _ = split_id(task_id)
    return site_hint_parts(site)


def hint(task_id: str) -> str:
    """One line that says all of a site's quirks; raises ValueError for a wrong id."""
    return " ; ".join(hint_parts(task_id).values())


def lesson(observation: str) -> str | None:
    """The part of a site's hint that an error observation teaches, or None if it teaches none."""
    for pattern, quirk in _LESSONS:
        if re.match(pattern, observation):
            return PHRASES[quirk]
    return None


def reference(task_id: str, syntax: Syntax = "compact") -> list[str]:
    """The reference solution as assistant messages would write it; raises ValueError for a wrong or open id."""
    make_task(task_id)
    return PocketEnv(task_id, "reference", {"syntax": syntax}).reference_actions() or []


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


def label_steps(task_id: str, actions: Sequence[str]) -> list[Label]:
    """Label each assistant message of an episode GOOD or BAD: `label_steps_of` its task; raises ValueError for a wrong
    or open id."""
    task = make_task(task_id)
    return label_steps_of(task, task.world(), actions)


def label_steps_of(task: WorldTask, world: PocketWorld, actions: Sequence[str]) -> list[Label]:
    """Label each assistant message of an episode of a task, which begins in `world`, GOOD or BAD.

    GOOD: a first reference call, a change towards the goal that breaks nothing, the first sight of an id the solution
    needs, or the right `done` once everything else holds. BAD: everything else, above all errors, repeats, needless
    look-ups and wrong changes.
    """
    needed = {a for c in task.solution for a in c.args if re.fullmatch(r"[neom]\d+", a)}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    labels: list[Label] = []
    for text in actions:
        before = _distance(task, world.tables.facts())
        try:
            call = parse(Message(role="assistant", content=text), "compact")
            observation = world.carry_out(call)
        except CallError:
            labels.append("BAD")
            continue
        after = _distance(task, world.tables.facts())
        if call.tool == "done":
            good = score(task, world) == 1.0
        elif after != before:
            good = after < before
        else:
            good = _is_needed(task, call, seen) or bool(needed & set(observation.split()))
        needed -= set(observation.split())
        seen.add((call.tool, call.args))
        labels.append("GOOD" if good else "BAD")
    return labels


def _distance(task: WorldTask, now: Facts) -> int:
    return len(diff(now, task.goal))


def _is_needed(task: WorldTask, call: PocketCall, seen: set[tuple[str, tuple[str, ...]]]) -> bool:
    return (call.tool, call.args) not in seen and any(
        c.tool == call.tool and c.args == call.args for c in task.solution
    )

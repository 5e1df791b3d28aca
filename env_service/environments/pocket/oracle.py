"""References and true step labels of PocketWorld, for audits, benchmarks and tests; the agent never sees them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from env_service.base import Message
from env_service.environments.pocket.calls import CallError, PocketCall, Syntax, parse
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.grading import diff, score
from env_service.environments.pocket.tasks import WorldTask, make_task
from env_service.environments.pocket.world import Facts, PocketWorld

Label = Literal["GOOD", "BAD"]


def reference(task_id: str, syntax: Syntax = "compact") -> list[str]:
    """Return the reference solution as messages; raises ValueError for a wrong or open id."""
    make_task(task_id)
    return PocketEnv(task_id, "reference", {"syntax": syntax}).reference_actions() or []


def label_steps(task_id: str, actions: Sequence[str]) -> list[Label]:
    """Label each message of an episode (`label_steps_of`); raises ValueError for a wrong or open id."""
    task = make_task(task_id)
    return label_steps_of(task, task.world(), actions)


def label_steps_of(task: WorldTask, world: PocketWorld, actions: Sequence[str]) -> list[Label]:
    """Label each assistant message of an episode that begins in `world` GOOD or BAD. GOOD: a first reference call, a
    harmless change towards the goal, the first sight of a needed id, and the right `done` once all else holds."""
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

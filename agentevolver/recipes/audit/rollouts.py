"""Rollouts whose truth is known: an environment's reference solutions, and mistakes made in them. No model is asked."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any
from uuid import uuid4

from agentevolver.types import Outcome, Step, StopReason, Task, Trajectory
from agentevolver.utils.errors import ConfigError
from agentevolver.utils.openings import Opening
from env_service.protocol import Instances
from env_service.registry import known_environments


@dataclass(frozen=True, slots=True)
class Recorded:
    """A rollout whose outcome is the world's own verdict, and the true label of each step."""

    rollout: Trajectory
    success: bool
    good: tuple[bool, ...]


def oracle_of(env_type: str) -> Any:
    """Return the module `oracle` beside an environment's class; raises ConfigError if there is none."""
    package = known_environments().get(env_type, "").partition(":")[0].rpartition(".")[0]
    try:
        found = import_module(f"{package}.oracle")
    except (ImportError, ValueError):
        found = None
    if found is None or not (hasattr(found, "reference") and hasattr(found, "label_steps")):
        raise ConfigError(
            f"env_service.env_type = {env_type} cannot be audited: beside its class there is no module `oracle` with "
            "reference(task_id) and label_steps(task_id, actions), which tell what is true; audit in pocket"
        )
    return found


def ways(solution: Sequence[str], other: Sequence[str], rng: random.Random) -> Iterator[list[str]]:
    """Yield ways to act on a task: rightly, with a detour, and with mistakes. `other` is another task's solution."""
    yield list(solution)
    yield [*solution[:-2], *solution[-1:]]
    yield [solution[0], *solution]
    at = max(0, len(solution) - 2)
    words = solution[at].split(" ")
    pool = [action.split(" ")[-1] for action in other if len(action.split(" ")) > 1]
    if len(words) > 1 and pool:
        yield [*solution[:at], " ".join([*words[:-1], rng.choice(pool)]), *solution[at + 1 :]]
    yield [other[0], *solution]
    yield list(other)
    yield [*solution[:-1], f"{solution[-1]} {rng.randrange(100)}"]


async def record(
    client: Instances, task: Task, actions: Sequence[str], params: dict[str, Any]
) -> tuple[Trajectory, float]:
    """Carry actions out up to the end of the episode; returns the rollout, and the environment's score."""
    instance_id = f"audit-{uuid4().hex}"
    made = await client.create_instance(task.env_type, task.task_id, instance_id, params)
    try:
        opening = Opening.of(made)
        messages = list(opening.messages)
        steps: list[Step] = []
        for index, action in enumerate(actions):
            result = await client.step(instance_id, {"role": "assistant", "content": action}, step_index=index)
            observation = "\n".join(str(message["content"]) for message in result["state"])
            steps.append(Step(index, action, observation, 0.0, 0, 0, False, 0.0, 0.0))
            messages += [{"role": "assistant", "content": action}, *result["state"]]
            if result["is_terminated"]:
                break
        score = await client.evaluate(instance_id)
    finally:
        await client.release_instance(instance_id)
    asked, outcome = replace(task, query=opening.query), Outcome(score, score >= 1, "")
    return Trajectory(asked, task.task_id, 0, messages, steps, StopReason.FINISHED, outcome), score


async def recorded(
    client: Instances, env_type: str, split: str, params: dict[str, Any], seed: int
) -> list[list[Recorded]]:
    """Return the rollouts of each task of a split, without rollouts of equal actions."""
    oracle, rng = oracle_of(env_type), random.Random(seed)
    ids = await client.get_env_profile(env_type, split)
    if len(ids) < 2:
        raise ConfigError(f"data.val_splits: the split {split!r} of {env_type} has {len(ids)} tasks, an audit needs 2")
    solutions = {task_id: oracle.reference(task_id) for task_id in ids}
    groups = []
    for place, task_id in enumerate(ids):
        task = Task(task_id, env_type, metadata={"solution": solutions[task_id]})
        group: dict[tuple[str, ...], Recorded] = {}
        for actions in ways(solutions[task_id], solutions[ids[place - 1]], rng):
            if actions:
                rollout, score = await record(client, task, actions, params)
                taken = tuple(step.action for step in rollout.steps)
                good = tuple(label == "GOOD" for label in oracle.label_steps(task_id, taken))
                group.setdefault(taken, Recorded(rollout, score >= 1, good))
        groups.append(list(group.values()))
    return groups


def half_and_half(groups: Sequence[Sequence[Recorded]], count: int, seed: int) -> list[Recorded]:
    """Return `count` rollouts in random order, half of them successes if there are enough."""
    rng, every = random.Random(seed), [one for group in groups for one in group]
    rng.shuffle(every)
    successes = [one for one in every if one.success]
    failures = [one for one in every if not one.success]
    first = min(len(successes), max(count - count // 2, count - len(failures)))
    return rng.sample([*successes[:first], *failures[: count - first]], min(count, len(every)))

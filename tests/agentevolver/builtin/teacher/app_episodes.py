"""Episodes of `pocket_app` for the teacher's tests: tasks, what an opening and some actions come to, changed
solutions."""

from __future__ import annotations

import random

from agentevolver.builtin.teacher.calls import CHANGES, Call, canonical
from env_service.environments.pocket.app_env import PocketAppEnv
from env_service.environments.pocket.app_tasks import N_LINKS, SIZES, app_task_ids, make_app_task
from env_service.environments.pocket.tasks import Task
from env_service.environments.pocket.wordings import NAMES, TAGS, WORDS
from tests.agentevolver.builtin.teacher.pocket_prompts import Steps, carry_out

LINKS = range(1, N_LINKS + 1)
SPLITS = tuple(SIZES)


def app_tasks(split: str, links: int, n: int | None = None) -> list[Task]:
    """Return the first `n` tasks of a split with so many links, all without `n`."""
    return [make_app_task(task_id, links) for task_id in app_task_ids(split, n)]


def solution_of(task: Task) -> list[str]:
    """Return the reference solution's actions."""
    return [str(call) for call in task.solution]


def played(task: Task, links: int, actions: list[str]) -> tuple[str, Steps, float]:
    """Carry actions out in a task's episode; returns the opening, the steps and the environment's grade."""
    env = PocketAppEnv(task.id, "i", {"links": links, "slack": len(actions)})
    opening = env.get_init_state()["state"][0]["content"]
    steps = carry_out(env, actions)
    return opening, steps, env.evaluate()


def changed(task: Task, rng: random.Random) -> tuple[str, list[str]]:
    """Return in which way a reference solution was changed, and its actions then."""
    calls = [Call(call.tool, call.args) for call in task.solution]
    places = [i for i, call in enumerate(calls) if call.tool in CHANGES]
    ways = ["dropped call", "wrong value", "one more", "twice", "other order"]
    if any(_place_of_id(calls[i]) is not None for i in places):
        ways.append("wrong id")
    way = rng.choice(ways)
    place = rng.choice([i for i in places if way != "wrong id" or _place_of_id(calls[i]) is not None])
    call = calls[place]
    if way == "dropped call":
        del calls[rng.randrange(len(calls))]
    elif way == "one more":
        calls.insert(rng.randrange(len(calls)), Call("mail.send", (rng.choice(NAMES), rng.choice(WORDS))))
    elif way == "twice":
        calls.insert(place, call)
    elif way == "other order":
        # A task's own order may be another one's of the same worth: the environment says which.
        other = rng.choice(places)
        calls[place], calls[other] = calls[other], calls[place]
    else:
        args = list(call.args)
        at = _place_of_id(call) if way == "wrong id" else rng.randrange(len(canonical(call)) - 1)
        assert at is not None
        args[at] = _other(args[at], rng)
        calls[place] = Call(call.tool, tuple(args))
    return way, [str(one) for one in calls]


def _place_of_id(call: Call) -> int | None:
    return next((i for i, arg in enumerate(call.args) if arg[0] in "neom" and arg[1:].isdecimal()), None)


def _other(arg: str, rng: random.Random) -> str:
    if arg[-1].isdecimal():
        head = arg.rstrip("0123456789")
        return f"{head}{rng.choice([n for n in range(1, 10) if f'{head}{n}' != arg])}"
    kinds = (NAMES, TAGS, WORDS, ("mon", "tue", "wed", "thu", "fri"))
    return rng.choice([word for kind in kinds if arg in kind for word in kind if word != arg] or [arg])

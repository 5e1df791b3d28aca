"""Episodes of `pocket_app` for the teacher's tests: tasks, what an opening and some actions come to, changed
solutions."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

from agentevolver.llm import prompts
from agentevolver.recipes.offline.teacher.calls import CHANGES, TeacherCall, canonical
from agentevolver.recipes.offline.teacher.intents import read_intent
from agentevolver.recipes.offline.teacher.service import Teacher
from agentevolver.recipes.offline.tests.teacher.pocket_prompts import NO_MISTAKES, Steps, ask, carry_out
from env_service.environments.pocket.app_env import PocketAppEnv
from env_service.environments.pocket.app_tasks import LINKS as MAKERS
from env_service.environments.pocket.app_tasks import N_LINKS, SIZES, TaskSubject, app_task_ids, make_app_task
from env_service.environments.pocket.calls import PocketCall as EnvCall
from env_service.environments.pocket.quirks import adapt
from env_service.environments.pocket.tasks import WorldTask
from env_service.environments.pocket.wordings import NAMES, TAGS, WORDS
from env_service.environments.pocket.world import Facts
from task_manager.actions import format_of
from task_manager.profile import shipped_profile

PROFILE = shipped_profile("pocket_app")
LINKS = range(1, N_LINKS + 1)
SPLITS = tuple(SIZES)


def app_tasks(split: str, links: int, n: int | None = None) -> list[WorldTask]:
    """Return the first `n` tasks of a split with so many links, all without `n`."""
    return [make_app_task(task_id, links) for task_id in app_task_ids(split, n)]


def solution_of(task: WorldTask) -> list[str]:
    """Return the reference solution's actions."""
    return [str(call) for call in task.solution]


def played(task: WorldTask, links: int, actions: list[str]) -> tuple[str, Steps, float]:
    """Carry actions out in a task's episode; returns the opening, the steps and the environment's grade."""
    env = PocketAppEnv(task.id, "i", {"links": links, "slack": len(actions)})
    opening = env.get_init_state()["state"][0]["content"]
    steps = carry_out(env, actions)
    return opening, steps, env.evaluate()


def changed(task: WorldTask, rng: random.Random) -> tuple[str, list[str]]:
    """Return in which way a reference solution was changed, and its actions then."""
    calls = [TeacherCall(call.tool, call.args) for call in task.solution]
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
        calls.insert(rng.randrange(len(calls)), TeacherCall("mail.send", (rng.choice(NAMES), rng.choice(WORDS))))
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
        calls[place] = TeacherCall(call.tool, tuple(args))
    return way, [str(one) for one in calls]


def _place_of_id(call: TeacherCall) -> int | None:
    return next((i for i, arg in enumerate(call.args) if arg[0] in "neom" and arg[1:].isdecimal()), None)


def _other(arg: str, rng: random.Random) -> str:
    if arg[-1].isdecimal():
        head = arg.rstrip("0123456789")
        return f"{head}{rng.choice([n for n in range(1, 10) if f'{head}{n}' != arg])}"
    kinds = (NAMES, TAGS, WORDS, ("mon", "tue", "wed", "thu", "fri"))
    return rng.choice([word for kind in kinds if arg in kind for word in kind if word != arg] or [arg])


class _Chosen(random.Random):
    """Chooses what is called by a name."""

    def __init__(self, name: str) -> None:
        super().__init__(0)
        self._name = name

    def choice(self, seq: Any) -> Any:
        """Return the row that is meant, where there is none the name."""
        return next((one for one in seq if one[0] == self._name), self._name)


def as_the_environment_does(world_id: str, query: str) -> Facts:
    """Return the facts that a goal's own links, as the environment makes them, leave behind in a world."""
    intent = read_intent(query)
    assert intent is not None and intent.links
    env = PocketAppEnv(world_id, "own", {"is_open_query": True})
    tables = env.world.tables
    mail, (_, it) = next(item for item in tables.mails.items() if item[1][0] == intent.slots["p"])
    meeting, (him, day, hour) = next(item for item in tables.meetings.items() if item[1][1] == intent.slots["d"])
    subject = TaskSubject(it, mail, him, meeting, day, hour)
    made = [MAKERS[link.kind](tables, subject, _Chosen(link.other))[1] for link in intent.links]
    plan = [EnvCall(tool, tuple(args)) for texts in made for tool, *args in map(str.split, texts)]
    for call in adapt(plan, env.world.quirks, env.world.pin):
        env.world.carry_out(call)
    return tables.facts()


@lru_cache(maxsize=256)
def explore_app(world_id: str, number: int) -> tuple[str, Steps]:
    """Let a teacher without mistakes explore a world as the task manager would; returns the opening and the steps."""
    teacher, fmt, steps = Teacher(rates=NO_MISTAKES), format_of("pocket_app"), Steps()
    breadth, depth = fmt.exploration
    params = {"is_open_query": True, **fmt.explore_params(breadth + depth)}
    env = PocketAppEnv(world_id, "t", params)
    opening = "\n\n".join(message["content"] for message in env.get_init_state()["state"])
    for i in range(breadth + depth):
        phase, shown = ("breadth", steps) if i < breadth else ("depth", steps[-depth:])
        sections = {"profile": PROFILE.instruction(), "opening": opening, "phase": phase}
        action = ask(
            teacher,
            "explorer/act",
            temperature=1.0,
            seed=1000 * number + i,
            transcript=prompts.transcript(shown),
            **sections,  # type: ignore[arg-type]
        )["action"]
        steps.append((i, action, str(env.step({"role": "assistant", "content": action})["state"][0]["content"])))
    return opening, steps

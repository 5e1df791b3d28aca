"""The tasks of `pocket_app`: one goal of 8 to 16 calls across three apps or more.

A goal names its thing and person only indirectly: `it` is the subject of a mail, `him` the person met on a day. Four
links make requests about them, most of which need another look-up. Ids are `app.kSITE.SEED`; splits are those of
pocket, in the paper's sizes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from env_service.environments.pocket.calls import PocketCall, Syntax
from env_service.environments.pocket.quirks import adapt
from env_service.environments.pocket.tasks import HELD_OUT_WORDING_FROM, OPEN, WorldTask, split_world_id, world_task_ids
from env_service.environments.pocket.wordings import APP_LINKS, APP_OPENINGS, DAYS, NAMES
from env_service.environments.pocket.world import PocketWorld, Tables

APP = "app"
LEAST_CALLS, MOST_CALLS = 8, 16
N_LINKS = 4
SIZES = {"train": 90, "dev": 60, "test": 120, "hard": 60}
_LEVEL = 4
_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class TaskSubject:
    """Subject of the links: `it` and `him`, with ids, day and hour as a look-up shows them."""

    it: str
    mail: str
    him: str
    meeting: str
    day: str
    hour: int


Link = tuple[dict[str, str], tuple[str, ...]]
"""The slots of a link's wording and its calls."""
Maker = Callable[[Tables, TaskSubject, random.Random], Link]


def _pay(tables: Tables, s: TaskSubject, rng: random.Random) -> Link:
    return {}, (f"shop.find {s.it}", f"bank.pay {s.him} {tables.products[s.it][0]}")


def _send(tables: Tables, s: TaskSubject, rng: random.Random) -> Link:
    return {}, (f"mail.send {s.him} {s.it}",)


def _buy(tables: Tables, s: TaskSubject, rng: random.Random) -> Link:
    return {}, (f"shop.buy {s.it} 1",)


def _note(tables: Tables, s: TaskSubject, rng: random.Random) -> Link:
    word, tag = rng.choice(list(tables.notes.values()))
    return {"w": word}, (f"note.find {word}", f"note.add {s.it} {tag}")


def _move(tables: Tables, s: TaskSubject, rng: random.Random) -> Link:
    person, day, _ = rng.choice([row for row in tables.meetings.values() if row[0] != s.him])
    return {"q": person}, (f"cal.find {person}", f"cal.move {s.meeting} {day}")


def _plan(tables: Tables, s: TaskSubject, rng: random.Random) -> Link:
    met = {person for person, _, _ in tables.meetings.values()}
    person = rng.choice([name for name in NAMES if name not in met])
    return {"r": person}, (f"cal.add {person} {s.day} {s.hour}",)


def _drop(tables: Tables, s: TaskSubject, rng: random.Random) -> Link:
    return {}, (f"mail.del {s.mail}",)


LINKS: dict[str, Maker] = {
    "pay": _pay,
    "send": _send,
    "buy": _buy,
    "note": _note,
    "move": _move,
    "plan": _plan,
    "drop": _drop,
}
# Links that take the goal to an app beside mail and calendar, where it begins.
_FURTHER = ("pay", "buy", "note")


def app_world(site: int, seed: str, syntax: Syntax = "compact") -> PocketWorld:
    world = PocketWorld(site, seed, syntax)
    rng, tables = random.Random(f"pocket-app-world-{site}-{seed}"), world.tables
    texts, days = rng.sample(sorted(tables.products), len(tables.mails)), rng.sample(DAYS, len(tables.meetings))
    tables.mails = {key: (name, text) for (key, (name, _)), text in zip(tables.mails.items(), texts, strict=True)}
    tables.meetings = {
        key: (name, day, hour) for (key, (name, _, hour)), day in zip(tables.meetings.items(), days, strict=True)
    }
    return world


@lru_cache(maxsize=4096)
def make_app_task(task_id: str, links: int = N_LINKS) -> WorldTask:
    """Build the task of an id; raises ValueError for an unknown or open id.

    With fewer `links` the world is of the same kind, but the goal may need only two apps and fewer calls.
    """
    kind, site, seed = split_world_id(task_id, APP)
    if kind == OPEN:
        raise ValueError(f"task id {task_id!r} names a world without a task; ask for it with is_open_query")
    for attempt in range(_ATTEMPTS):
        rng = random.Random(f"pocket-app-{task_id}-{attempt}")
        task = _draw(task_id, site, seed, f"{APP}-{seed}-{attempt}", rng, links)
        if task is not None:
            return task
    raise RuntimeError(f"no goal of {LEAST_CALLS} to {MOST_CALLS} calls for task {task_id!r} in {_ATTEMPTS} draws")


def _draw(task_id: str, site: int, seed: int, world_seed: str, rng: random.Random, n_links: int) -> WorldTask | None:
    """Draw a goal; None if a goal of all links needs fewer than three apps, or too few or too many calls."""
    world = app_world(site, world_seed)
    tables = world.tables
    mail, (sender, it) = rng.choice(list(tables.mails.items()))
    meeting, (him, day, hour) = rng.choice(list(tables.meetings.items()))
    subject = TaskSubject(it, mail, him, meeting, day, hour)
    names = rng.sample(sorted(LINKS), n_links)
    links = [LINKS[name](tables, subject, rng) for name in names]

    def wording() -> int:
        return 2 if seed >= HELD_OUT_WORDING_FROM else rng.randrange(2)

    asked = [APP_LINKS[name][wording()].format(**slots) for name, (slots, _) in zip(names, links, strict=True)]
    query = f"{APP_OPENINGS[wording()].format(p=sender, d=day)} {' , '.join(asked)}"
    texts = (f"mail.find {sender}", f"cal.list {day}", *(call for _, calls in links for call in calls), "done")
    plan = tuple(PocketCall(tool, tuple(args)) for tool, *args in map(str.split, texts))
    solution = tuple(adapt(plan, world.quirks, world.pin))
    of_the_regime = LEAST_CALLS <= len(solution) <= MOST_CALLS and set(names) & set(_FURTHER)
    if n_links == N_LINKS and not of_the_regime:
        return None
    start = tables.facts()
    for call in solution:
        world.carry_out(call)
    return WorldTask(
        id=task_id,
        family=APP,
        level=_LEVEL,
        site=site,
        seed=seed,
        world_seed=world_seed,
        query=query,
        plan=plan,
        solution=solution,
        answer=None,
        start=start,
        goal=tables.facts(),
    )


def app_task_ids(split: str, n: int | None = None) -> list[str]:
    """Return the first `n` ids of a split; see `world_task_ids`."""
    return world_task_ids(split, APP, SIZES, n, "tasks")

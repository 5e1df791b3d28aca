"""Goals of `pocket_app` that a transcript proves: when to write them, and how to draw them.

They are written if the preference asks for tasks over three or more entities, and only about mails whose text is a
product of the shop. Pocket's own worlds have no such mails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product

from agentevolver.recipes.offline.teacher.app_goals import APP, LINK_TOOLS, MOST_LINKS, AppLink
from agentevolver.recipes.offline.teacher.calls import TeacherCall
from agentevolver.recipes.offline.teacher.intents import Intent
from agentevolver.recipes.offline.teacher.observed import ObservedEpisode
from agentevolver.recipes.offline.teacher.prompt import TeacherDraws

LEAST_ENTITIES = 3
# Share of goals among the tasks, while the transcript proves goals.
SHARE = 2 / 3
# A profile with these words has such goals; the explorer gets no preference to read it from.
MARK = "what somebody did write"
_ENTITIES = re.compile(r"\babout (\d+) entities per task")
_ATTEMPTS = 40
# Balance that is safe to assume without a look-up.
_LEAST_BALANCE = 20

Proposed = tuple[Intent, list[TeacherCall]]
Proven = Callable[[Intent, ObservedEpisode], list[TeacherCall] | None]


def most_wanted(preference: str) -> int:
    """Return the maximum number of links in a goal: the preference's number of entities, or 0 (no goals) below
    three."""
    found = _ENTITIES.search(preference)
    entities = int(found[1]) if found is not None else 0
    return min(MOST_LINKS, entities) if entities >= LEAST_ENTITIES else 0


def mixed(goals: Iterator[Proposed], others: Iterator[Proposed], draws: TeacherDraws) -> Iterator[Proposed]:
    """Yield goals and other tasks, two goals in three while there are some; without goals no random number is drawn."""
    goal = next(goals, None)
    while goal is not None:
        other = None if draws.rng.random() < SHARE else next(others, None)
        if other is not None:
            yield other
        else:
            yield goal
            goal = next(goals, None)
    yield from others


def goals(seen: ObservedEpisode, weights: Sequence[float], draws: TeacherDraws, proven: Proven) -> Iterator[Proposed]:
    """Yield goals with their solutions, as far as `proven` finds them in the transcript. `weights` are those of one
    link, two, and so on."""
    subjects = [(slots, asked) for slots in _subjects(seen) if (asked := _links(slots, seen, proven))]
    for _ in range(_ATTEMPTS if subjects else 0):
        slots, asked = draws.rng.choice(subjects)
        count = draws.pick(list(enumerate(weights[: len(asked)], start=1)))
        links = tuple(draws.rng.choice(asked[kind]) for kind in draws.rng.sample(list(asked), count))
        intent = Intent(APP, slots, links)
        calls = proven(intent, seen)
        if calls is not None and _is_affordable(calls, seen):
            yield intent, calls


def _subjects(seen: ObservedEpisode) -> Iterator[dict[str, str]]:
    facts = seen.facts
    senders = [row[1] for row in facts.rows["mail"].values() if (facts.products.get(row[2]) or (0, 0))[1] > 0]
    days = sorted(c.args[0] for c in facts.answered if c.tool == "cal.list" and len(facts.look(c)) == 1)
    for sender, day in product(senders, days):
        yield {"p": sender, "d": day}


def _links(slots: dict[str, str], seen: ObservedEpisode, proven: Proven) -> dict[str, list[AppLink]]:
    rows, day = seen.facts.rows, slots["d"]
    met = {row[1] for row in rows["cal"].values()}
    others = {
        "note": [row[1] for row in rows["note"].values()],
        "move": [row[1] for row in rows["cal"].values() if row[2] != day],
        "plan": [name for name in seen.words.get("NAME", []) if name not in met],
    }
    found = {
        kind: [
            link
            for other in others.get(kind, [""])
            if proven(Intent(APP, slots, (link := AppLink(kind, other),)), seen)
        ]
        for kind in LINK_TOOLS
    }
    return {kind: links for kind, links in found.items() if links}


def _is_affordable(calls: Sequence[TeacherCall], seen: ObservedEpisode) -> bool:
    paid = sum(int(arg) for call in calls if call.tool == "bank.pay" for arg in call.args if arg.isdecimal())
    bought = sum(seen.facts.prices[call.args[0]] for call in calls if call.tool == "shop.buy")
    return paid + bought <= (_LEAST_BALANCE if seen.facts.balance is None else seen.facts.balance)

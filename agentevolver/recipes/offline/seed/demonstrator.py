"""Noisy demonstrator of PocketWorld, and its hints. It knows the format and the tools, but not a site's quirks.

At each call, with the probabilities in `Habits`, it follows its plan as far as it knows the site; slips (a random call,
a changed argument, an early `done`); or, after an error, takes the lesson or not. If a hint is shown, it mostly
believes it. It uses ids, prices and the PIN only after a call has shown them.

In training, guidance is summarised from real failures. Hints are therefore drawn in varied wordings and orders, in
part, and beside irrelevant advice.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentevolver.recipes.offline.seed.syntax import COMPACT, Syntax
from env_service.base import Message
from env_service.environments.pocket.calls import PocketCall
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.quirks import Quirks, adapt, quirks_of, reorder, site_hint_parts
from env_service.environments.pocket.tools import TOOLS, WorldTool
from env_service.environments.pocket.wordings import DAYS, FIRST_HOUR, LAST_HOUR, NAMES, TAGS, WORDS

HINT_TEMPLATE = "tip {hint}\n{task}"

_PARAPHRASES: dict[tuple[str, str], tuple[str, ...]] = {
    ("guard", "doc"): (
        "read the doc before you change or delete",
        "call doc before note.tag , cal.move , note.del , cal.del , mail.del or shop.ret",
        "tag , move , del and ret need doc first",
        "before del read its doc",
        "note.del : read doc note.del first",
        "cal.move : read doc cal.move first",
    ),
    ("guard", "yes"): (
        "end a change or a delete with yes",
        "note.tag , cal.move , note.del , cal.del , mail.del and shop.ret need yes at the end",
        "tag , move , del and ret need yes",
        "confirm a del with yes",
        "note.del : add yes at the end",
        "cal.move : add yes at the end",
    ),
    ("pay", "name"): ("pay takes name then amount", "use bank.pay NAME AMOUNT", "bank.pay wants the name first"),
    ("pay", "amount"): ("pay takes amount then name", "use bank.pay AMOUNT NAME", "bank.pay wants the amount first"),
    ("login", "pin"): (
        "call me.pin and bank.login before the bank or buying",
        "bank and buy need a login first",
        "login with pin before bank.pay , bank.bal and shop.buy",
        "you must login first",
    ),
    ("login", "open"): ("no login is needed", "bank and buy work without login", "do not login"),
    ("plan", "name"): ("plan takes name day hour", "use cal.add NAME DAY HOUR", "cal.add wants the name first"),
    ("plan", "day"): ("plan takes day hour name", "use cal.add DAY HOUR NAME", "cal.add wants the name last"),
    ("look", "first"): (
        "use shop.find before shop.buy",
        "shop.buy needs shop.find first",
        "find a product before you buy it",
    ),
    ("look", "free"): ("shop.buy works at once", "no need to find before buy", "do not find before buy"),
}
_IDLE = (
    "do not repeat a call",
    "read the error and do what it says",
    "use the id that find shows",
    "call done at the end",
    "be careful",
    "do only what the task asks",
    "answer with the value only",
)
_JOINTS = (" ; ", " ; ", " , ", " . ", "\n", "\n- ")


def with_hint(task: str, hint: str) -> str:
    return HINT_TEMPLATE.format(hint=hint, task=task) if hint else task


def draw_hint(rng: random.Random, task_id: str) -> tuple[str, frozenset[str]]:
    """Draw a true hint for a task's site; return it and the quirks it tells.

    Three in five are the plain hint in full; the others vary in wording, order, completeness, irrelevant advice and
    layout.
    """
    site = quirks_of(site_number := int(task_id.split(".")[1][1:]))
    parts = site_hint_parts(site_number)
    quirks = list(parts)
    if rng.random() < 0.6:
        return " ; ".join(parts.values()), frozenset(quirks)
    rng.shuffle(quirks)
    told = quirks[: rng.choice((1, 2, 3, 4, 5, 5, 5))]
    lines = [parts[q] if rng.random() < 0.4 else rng.choice(_PARAPHRASES[q, str(getattr(site, q))]) for q in told]
    for idle in rng.sample(_IDLE, rng.choice((0, 0, 1, 2))):
        lines.insert(rng.randrange(len(lines) + 1), idle)
    joint = rng.choice(_JOINTS)
    return joint.join(lines), frozenset(told)


def phrases() -> list[str]:
    return [p for group in _PARAPHRASES.values() for p in group] + list(_IDLE)


N_NAMES = 100
_POLITE = (
    "please {}",
    "{} please",
    "{} now",
    "can you {}",
    "i want you to {}",
    "task : {}",
    "your task : {}",
    "hi , {}",
    "do this : {}",
)


@dataclass(frozen=True, slots=True)
class Habits:
    """Probabilities: of a slip at each call; of taking the lesson of an error, or else repeating the call; of being
    shown a hint, and of following it; of a polite wording; of an episode without a task; and of believing in an unusual
    quirk."""

    slip: float = 0.08
    fix: float = 0.2
    insist: float = 0.4
    hint: float = 0.6
    follow: float = 0.94
    polite: float = 0.15
    explore: float = 0.04
    guess: float = 0.15

    def at_first(self) -> Habits:
        """The habits for early training: few slips, mostly hints, and lessons taken.

        Copying names, ids and numbers is learnt from these in half the steps that noisy demonstrations need.
        """
        return replace(
            self, slip=self.slip / 4, fix=max(self.fix, 0.7), hint=max(self.hint, 0.7), polite=self.polite / 3
        )


_USUAL = Quirks(guard="none", pay="name", login="open", plan="name", look="free")
_GUESSES: dict[str, tuple[str, ...]] = {
    "guard": ("doc", "yes"),
    "pay": ("amount",),
    "login": ("pin",),
    "plan": ("day",),
    "look": ("first",),
}
_ERRORS: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"err read doc", {"guard": "doc"}),
    (r"err add (yes|\"confirm\")", {"guard": "yes"}),
    (r"err login first", {"login": "pin"}),
    (r"err find \S+ first", {"look": "first"}),
    (r"err use bank[._]pay (AMOUNT|\{\"amount\")", {"pay": "amount"}),
    (r"err use bank[._]pay (NAME|\{\"name\")", {"pay": "name"}),
    (r"err use cal[._]add (DAY|\{\"day\")", {"plan": "day"}),
    (r"err use cal[._]add (NAME|\{\"name\")", {"plan": "name"}),
)


def demonstrate(
    task_id: str,
    rng: random.Random,
    habits: Habits,
    syntax: Syntax = COMPACT,
    world: type[PocketEnv] = PocketEnv,
    params: Mapping[str, Any] | None = None,
) -> list[Message]:
    """Return one episode of a task of `world` as a conversation that ends with an assistant message. `params` create
    the instance (slack 2 by default). `task_id` must have a reference solution. The episode is the same in every
    syntax.

    A made-up name replaces the site's: quirks must be read from a hint or an error, not learnt by name.
    """
    if rng.random() < habits.explore:
        return _explore(task_id, rng, syntax)
    env = world(task_id, "demo", {"slack": 2, **(params or {}), **syntax.env_params})
    messages = env.get_init_state()["state"]
    messages[0]["content"] = f"site k{rng.randrange(N_NAMES)}"
    if rng.random() < habits.polite:
        messages[-1]["content"] = rng.choice(_POLITE).format(messages[-1]["content"])
    believed = {q: rng.choice(_GUESSES[q]) for q in _GUESSES if rng.random() < habits.guess}
    if rng.random() < habits.hint:
        hint, told = draw_hint(rng, task_id)
        messages[-1]["content"] = with_hint(messages[-1]["content"], hint)
        if rng.random() < habits.follow:
            believed |= {q: str(getattr(env.world.quirks, q)) for q in told}
    return _act(env, messages, rng, habits, replace(_USUAL, **believed), syntax)  # type: ignore[arg-type]


def _act(
    env: PocketEnv, messages: list[Message], rng: random.Random, habits: Habits, believed: Quirks, syntax: Syntax
) -> list[Message]:
    assert env.task is not None
    rest, done = list(env.task.plan), list[PocketCall]()
    while True:
        queue = adapt(rest, believed, env.world.pin, done)
        intended = queue[0] if queue else PocketCall("done")
        call = slip(intended, env, rng) if rng.random() < habits.slip else intended
        observation, over = _step(env, messages, call, syntax)
        if over:
            return messages
        if call != intended:
            continue
        if observation.startswith("err"):
            lesson = next((quirk for pattern, quirk in _ERRORS if re.match(pattern, observation)), None)
            if lesson is not None and rng.random() < habits.fix:
                believed = replace(believed, **lesson)
                continue
            if rng.random() < habits.insist:
                continue
            if call.tool == "bank.bal":
                rest = [PocketCall("done")]
                continue
        done.append(call)
        if rest and call == reorder(rest[0], believed):
            rest.pop(0)


def _step(env: PocketEnv, messages: list[Message], call: PocketCall, syntax: Syntax) -> tuple[str, bool]:
    messages.append(syntax.action(call))
    result = env.step(messages[-1])
    if not result["is_terminated"]:
        messages.extend(result["state"])
    return result["state"][0]["content"], result["is_terminated"]


def slip(intended: PocketCall, env: PocketEnv, rng: random.Random) -> PocketCall:
    kind = rng.random()
    if kind < 0.15:
        return PocketCall("done")
    if kind < 0.5 and intended.args and intended.tool not in ("done", "doc"):
        at = rng.randrange(len(intended.args))
        old = intended.args[at]
        pool = next((p for p in (WORDS, NAMES, TAGS, DAYS) if old in p), None)
        other = rng.choice(pool) if pool else f"{old[0] if old[0] in 'neom' else ''}{rng.randint(1, 9)}"
        return PocketCall(intended.tool, (*intended.args[:at], other, *intended.args[at + 1 :]))
    return random_call(env, rng)


def random_call(env: PocketEnv, rng: random.Random) -> PocketCall:
    tool = rng.choice([t for t in TOOLS.values() if t.name != "done"])
    return PocketCall(tool.name, tuple(_random_argument(tool, i, env, rng) for i in range(len(tool.params))))


def _random_argument(tool: WorldTool, index: int, env: PocketEnv, rng: random.Random) -> str:
    tables = env.world.tables
    kind = tool.params[index].kind
    ids = {
        "note": list(tables.notes),
        "cal": list(tables.meetings),
        "mail": list(tables.mails),
        "shop": list(tables.orders),
    }
    pools: dict[str, list[str]] = {
        "word": list(WORDS),
        "name": list(NAMES),
        "tag": list(TAGS),
        "day": list(DAYS),
        "text": list(WORDS),
        "tool": list(TOOLS),
        "hour": [str(h) for h in range(FIRST_HOUR, LAST_HOUR + 1)],
        "id": ids.get(tool.app) or [f"n{rng.randint(1, 9)}"],
    }
    return rng.choice(pools.get(kind) or [str(n) for n in range(1, 10)])


def _explore(task_id: str, rng: random.Random, syntax: Syntax) -> list[Message]:
    _, site, seed = task_id.split(".")
    env = PocketEnv(f"open.{site}.{seed}", "demo", {"explore_steps": rng.randint(3, 8), **syntax.env_params})
    messages = env.get_init_state()["state"]
    messages[0]["content"] = f"site k{rng.randrange(N_NAMES)}"
    while True:
        left = env.max_steps - env.steps
        call = PocketCall("done") if left == 1 and rng.random() < 0.8 else random_call(env, rng)
        if rng.random() < 0.3:
            call = adapt([call], quirks_of(env.world.site), env.world.pin)[0] if call.tool != "done" else call
        if _step(env, messages, call, syntax)[1]:
            return messages

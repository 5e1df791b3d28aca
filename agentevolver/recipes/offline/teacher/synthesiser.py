"""Synthesiser role: tasks from an exploration's transcript.

Every value of a solution is in the transcript or free to choose, and every rule of the site that its calls need was
learnt there. A seeded share of the tasks is hallucinated: the solution does not do what the query asks for, in one of
six ways.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from agentevolver.recipes.offline.teacher import app_proposals
from agentevolver.recipes.offline.teacher.calls import CHANGES, LOOKUPS, TeacherCall, canonical
from agentevolver.recipes.offline.teacher.goals import Impossible, next_call
from agentevolver.recipes.offline.teacher.intents import KINDS, Intent, normal, read_intent, wordings_of, write_query
from agentevolver.recipes.offline.teacher.observed import MissingLookup, ObservedEpisode, see
from agentevolver.recipes.offline.teacher.prompt import NotUnderstood, Prompt, TeacherDraws
from agentevolver.recipes.offline.teacher.rules import RULES, concerns

Slots = dict[str, str]
_LONGEST = 24
_WEIGHTS = {"easy": (3.0, 2.0, 1.0, 0.5), "medium": (1.0, 2.0, 2.0, 1.0), "hard": (1.0, 1.2, 1.6, 2.0)}


def tasks(prompt: Prompt, draws: TeacherDraws) -> dict[str, Any]:
    """`synthesiser/tasks`: up to `count` tasks that the transcript proves."""
    prompt.text("opening")
    seen = see(prompt.sections, prompt.steps())
    existing = [line.removeprefix("- ") for line in prompt.sections.get("existing", "").splitlines() if line.strip()]
    made: list[dict[str, Any]] = []
    wanted = _count(prompt)
    taken = [set(normal(query).split()) for query in existing]
    preference = prompt.sections.get("preference", "")
    weights = _weights(preference)
    chosen = _chosen(seen, existing, weights, draws)
    if links := app_proposals.most_wanted(preference):
        chosen = app_proposals.mixed(app_proposals.goals(seen, weights[:links], draws, grounded), chosen, draws)
    for intent, calls in chosen:
        if len(made) >= wanted:
            break
        if prompt.focus and all(call.tool != prompt.focus for call in calls):
            continue
        query = write_query(intent, draws.rng.randrange(wordings_of(intent)))
        if any(_overlap(set(normal(query).split()), words) >= 0.8 for words in taken):
            continue
        taken.append(set(normal(query).split()))
        made.append(_task(query, intent, calls, seen, draws, digest(prompt.text("transcript"))))
    return {"tasks": made}


def digest(transcript: str) -> str:
    """Return the transcript's id in the record of mistakes; a query with its solution may be right in another world."""
    return hashlib.sha256(transcript.strip().encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _count(prompt: Prompt) -> int:
    text = prompt.sections.get("count", "5").strip()
    if not text.isdecimal():
        raise NotUnderstood(f"synthesiser/tasks: <count> must be a whole number, not {text[:40]!r}")
    return int(text)


def _task(
    query: str, intent: Intent, calls: list[TeacherCall], seen: ObservedEpisode, draws: TeacherDraws, source: str
) -> dict[str, Any]:
    confidence = round(0.98 - 0.04 * intent.level - 0.05 * draws.rng.random(), 2)
    mistake = draws.errs(draws.rates.hallucinated)
    if mistake:
        kind, query, calls = hallucinate(query, intent, calls, seen, draws)
    solution = [str(call) for call in calls]
    if mistake:
        draws.plant(kind, query=query, solution=solution, transcript=source)
    return {"query": query, "solution": solution, "confidence": confidence}


def _weights(preference: str) -> tuple[float, ...]:
    return next((weights for name, weights in _WEIGHTS.items() if name in preference.lower()), (1.0, 1.0, 1.0, 1.0))


def _overlap(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 1.0


def _chosen(
    seen: ObservedEpisode, existing: list[str], weights: tuple[float, ...], draws: TeacherDraws
) -> Iterator[tuple[Intent, list[TeacherCall]]]:
    had = [intent.kind for query in existing if (intent := read_intent(query)) is not None]
    for _ in range(3):
        left = {kind: weights[KINDS[kind].level - 1] / (1 + 2 * had.count(kind)) for kind in KINDS}
        while left:
            kind = draws.pick(list(left.items()))
            del left[kind]
            slots = _SLOTS[kind](seen, draws)
            calls = grounded(Intent(kind, slots), seen) if slots is not None else None
            if calls is not None and slots is not None:
                yield Intent(kind, slots), calls


def grounded(intent: Intent, seen: ObservedEpisode) -> list[TeacherCall] | None:
    """Return the calls that solve a task from the start, or None if the transcript does not prove them."""
    episode = ObservedEpisode(rules=seen.rules.copy())
    calls: list[TeacherCall] = []
    while len(calls) < _LONGEST:
        try:
            call = next_call(intent, episode)
            if call.tool in LOOKUPS:
                episode.facts.take(call, seen.facts.look(call))
        except (MissingLookup, Impossible):
            return None
        if call.tool in CHANGES:
            episode.effects.append(canonical(call))
        episode.worked.add(call)
        calls.append(call)
        if call.tool == "done":
            used = {c.tool for c in calls}
            proven = all(seen.rules.get(rule) is not None for rule in RULES if concerns(rule, used))
            return calls if proven and (episode.effects or call.args) else None
    return None


# ---- slots of a kind's wording, drawn from the transcript; None if it shows none ----


def _any(seen: ObservedEpisode, draws: TeacherDraws, kind: str) -> str | None:
    table = {"NAME": ("cal", "mail"), "WORD": ("note", "order")}.get(kind, ())
    words = seen.words.get(kind) or sorted({row[1] for t in table for row in seen.facts.rows[t].values()})
    return draws.rng.choice(words) if words else None


def _row(seen: ObservedEpisode, draws: TeacherDraws, table: str) -> tuple[str, ...] | None:
    rows = list(seen.facts.rows[table].values())
    return draws.rng.choice(rows) if rows else None


def _product(seen: ObservedEpisode, draws: TeacherDraws) -> tuple[str, int, int] | None:
    products = [(word, *product) for word, product in seen.facts.products.items() if product is not None]
    return draws.rng.choice(products) if products else None


def _answered(seen: ObservedEpisode, draws: TeacherDraws, tool: str, least: int, most: int) -> str | None:
    calls = [c for c in seen.facts.answered if c.tool == tool and least <= len(seen.facts.look(c)) <= most]
    return draws.rng.choice(sorted(c.args[0] for c in calls)) if calls else None


def _free(**kinds: str) -> Callable[[ObservedEpisode, TeacherDraws], Slots | None]:
    """`kinds` are kinds of words by slot; N is an amount, H an hour."""

    def draw(seen: ObservedEpisode, draws: TeacherDraws) -> Slots | None:
        out: Slots = {}
        for slot, kind in kinds.items():
            value = {"N": str(draws.rng.randint(2, 9)), "H": str(draws.rng.randint(1, 9))}.get(kind) or _any(
                seen, draws, kind
            )
            if value is None:
                return None
            out[slot] = value
        return out

    return draw


def _of_row(table: str, slot: str, **others: str) -> Callable[[ObservedEpisode, TeacherDraws], Slots | None]:
    def draw(seen: ObservedEpisode, draws: TeacherDraws) -> Slots | None:
        row, rest = _row(seen, draws, table), _free(**others)(seen, draws)
        if row is None or rest is None or any(value in row for value in rest.values()):
            return None
        return {slot: row[1], **rest}

    return draw


def _of_product(seen: ObservedEpisode, draws: TeacherDraws) -> Slots | None:
    product = _product(seen, draws)
    return None if product is None else {"w": product[0]}


def _buy(seen: ObservedEpisode, draws: TeacherDraws) -> Slots | None:
    product = _product(seen, draws)
    if product is None:
        return None
    purse = seen.facts.balance if seen.facts.balance is not None else 20
    most = min(product[2], purse // product[1])
    return {"w": product[0], "n": str(draws.rng.randint(1, most))} if most > 0 else None


def _pay_price(seen: ObservedEpisode, draws: TeacherDraws) -> Slots | None:
    product, name = _product(seen, draws), _any(seen, draws, "NAME")
    return None if product is None or name is None else {"w": product[0], "p": name}


def _if_price(seen: ObservedEpisode, draws: TeacherDraws) -> Slots | None:
    product, tag = _product(seen, draws), _any(seen, draws, "TAG")
    if product is None or tag is None or product[2] < 1:
        return None
    n = (
        product[1] + draws.rng.randint(1, 4)
        if draws.rng.random() < 0.5
        else max(1, product[1] - draws.rng.randint(0, 3))
    )
    return {"w": product[0], "n": str(n), "t": tag}


def _on_day(most: int, least: int = 0, **others: str) -> Callable[[ObservedEpisode, TeacherDraws], Slots | None]:
    def draw(seen: ObservedEpisode, draws: TeacherDraws) -> Slots | None:
        day, rest = _answered(seen, draws, "cal.list", least, most), _free(**others)(seen, draws)
        return None if day is None or rest is None else {"d": day, **rest}

    return draw


def _with_tag(least: int, most: int) -> Callable[[ObservedEpisode, TeacherDraws], Slots | None]:
    def draw(seen: ObservedEpisode, draws: TeacherDraws) -> Slots | None:
        tag = _answered(seen, draws, "note.list", least, most)
        return None if tag is None else {"t": tag}

    return draw


def _if_rich(seen: ObservedEpisode, draws: TeacherDraws) -> Slots | None:
    rest = _free(p="NAME", m="N", w="WORD")(seen, draws)
    return None if rest is None else {**rest, "n": str(draws.rng.choice((40, 50, 60)))}


_SLOTS: dict[str, Callable[[ObservedEpisode, TeacherDraws], Slots | None]] = {
    "note_add": _free(w="WORD", t="TAG"),
    "price": _of_product,
    "note_which": _of_row("note", "w"),
    "cal_when": _of_row("cal", "p"),
    "mail_send": _free(p="NAME", w="WORD"),
    "mail_what": _of_row("mail", "p"),
    "note_retag": _of_row("note", "w", t="TAG"),
    "cal_move": _of_row("cal", "p", d="DAY"),
    "note_count": _with_tag(0, 9),
    "cal_add": _free(p="NAME", d="DAY", h="H"),
    "mail_pass": _of_row("mail", "p", q="NAME"),
    "balance": lambda seen, draws: {},
    "pay": _free(p="NAME", n="N"),
    "note_del": _of_row("note", "w"),
    "cal_del": _of_row("cal", "p"),
    "mail_del": _of_row("mail", "p"),
    "refund": _of_row("order", "w"),
    "buy": _buy,
    "pay_price": _pay_price,
    "pay_met": _on_day(1, 1, n="N"),
    "del_tag": _with_tag(1, 2),
    "if_price": _if_price,
    "if_free": _on_day(9, p="NAME", h="H", w="WORD"),
    "if_rich": _if_rich,
}


_FREE_WORDS = ("TAG", "DAY", "NAME", "WORD")
# Kinds whose wording names an existing thing, and the thing's table.
_TABLE_OF = {
    "note_del": "note",
    "note_which": "note",
    "note_retag": "note",
    "refund": "order",
    "price": "product",
    "pay_price": "product",
}
_Changed = tuple[str | None, list[TeacherCall]]
_Way = Callable[[Intent, list[TeacherCall], ObservedEpisode, TeacherDraws], _Changed | None]


def hallucinate(
    query: str, intent: Intent, calls: list[TeacherCall], seen: ObservedEpisode, draws: TeacherDraws
) -> tuple[str, str, list[TeacherCall]]:
    ways: list[tuple[str, _Way]] = [("invalid tool", _invalid_tool), ("missing step", _missing_step)]
    if any(_id_of(call) for call in calls):
        ways.append(("wrong id", _wrong_id))
    if calls[-1].args:
        ways.append(("wrong answer", _wrong_answer))
    if any(call.tool in CHANGES for call in calls):
        ways.append(("wrong value", _wrong_value))
    if intent.kind in _TABLE_OF:
        ways.append(("unseen thing", _unseen))
    draws.rng.shuffle(ways)
    found = ((name, way(intent, calls, seen, draws)) for name, way in ways)
    name, (other, changed) = next((name, made) for name, made in found if made is not None)
    return name, other or query, changed


def _id_of(call: TeacherCall) -> str | None:
    return next((arg for arg in call.args if len(arg) > 1 and arg[0] in "neom" and arg[1:].isdecimal()), None)


def _replace(calls: list[TeacherCall], old: TeacherCall, new: TeacherCall) -> list[TeacherCall]:
    return [new if call == old else call for call in calls]


def _swapped(call: TeacherCall, old: str, new: str) -> TeacherCall:
    return TeacherCall(call.tool, tuple(new if arg == old else arg for arg in call.args))


def _invalid_tool(intent: Intent, calls: list[TeacherCall], seen: ObservedEpisode, draws: TeacherDraws) -> _Changed:
    victim = draws.rng.choice([call for call in calls if call.tool != "done"])
    tool = f"{victim.app}.{draws.rng.choice(('remove', 'update', 'search', 'get', 'delete'))}"
    return None, _replace(calls, victim, TeacherCall(tool, victim.args))


def _missing_step(intent: Intent, calls: list[TeacherCall], seen: ObservedEpisode, draws: TeacherDraws) -> _Changed:
    changes = [call for call in calls if call.tool in CHANGES]
    if changes:
        victim = draws.rng.choice(changes)
        return None, [call for call in calls if call != victim]
    return None, [*calls[:-1], TeacherCall("done")]


def _wrong_id(intent: Intent, calls: list[TeacherCall], seen: ObservedEpisode, draws: TeacherDraws) -> _Changed | None:
    victim = next((call for call in calls if _id_of(call)), None)
    key = _id_of(victim) if victim is not None else None
    if victim is None or key is None:
        return None
    wrong = draws.rng.choice(
        [f"{key[0]}{i}" for i in range(1, 30) if f"{key[0]}{i}" not in (key, *(_id_of(c) for c in calls))]
    )
    return None, _replace(calls, victim, _swapped(victim, key, wrong))


def _wrong_answer(intent: Intent, calls: list[TeacherCall], seen: ObservedEpisode, draws: TeacherDraws) -> _Changed:
    right = calls[-1].args[0]
    others = [w for words in seen.words.values() if right in words for w in words if w != right]
    wrong = (
        str(int(right) + draws.rng.choice((1, 2, 5))) if right.isdecimal() else draws.rng.choice(others or ["unknown"])
    )
    return None, [*calls[:-1], TeacherCall("done", (wrong,))]


def _wrong_value(
    intent: Intent, calls: list[TeacherCall], seen: ObservedEpisode, draws: TeacherDraws
) -> _Changed | None:
    victims = [(call, arg) for call in calls if call.tool in CHANGES for arg in _values(intent, call)]
    if not victims:
        return None
    victim, right = draws.rng.choice(victims)
    others = sorted(
        {w for kind in _FREE_WORDS if right in seen.words.get(kind, []) for w in seen.words[kind] if w != right}
    )
    wrong = str(int(right) + 1) if right.isdecimal() else draws.rng.choice(others) if others else None
    return None if wrong is None else (None, _replace(calls, victim, _swapped(victim, right, wrong)))


def _values(intent: Intent, call: TeacherCall) -> list[str]:
    """Return the values of a change that the query decides: those it names, or, for a goal with links, all but ids."""
    if intent.links:
        return [arg for arg in canonical(call)[1:] if arg != _id_of(call)]
    return [arg for arg in call.args if arg in intent.slots.values()]


def _unseen(intent: Intent, calls: list[TeacherCall], seen: ObservedEpisode, draws: TeacherDraws) -> _Changed | None:
    there = {table: {row[1] for row in rows.values()} for table, rows in seen.facts.rows.items()}
    there["product"] = {word for word, product in seen.facts.products.items() if product is not None}
    here = there.pop(_TABLE_OF[intent.kind])
    elsewhere = sorted(
        set().union(*there.values(), {w for w, product in seen.facts.products.items() if product is None}) - here
    )
    unseen = [word for word in seen.words.get("WORD", []) if word not in here]
    if not elsewhere and not unseen:
        return None
    word, right = draws.rng.choice(elsewhere or unseen), intent.slots["w"]
    asked = Intent(intent.kind, {**intent.slots, "w": word})
    return write_query(asked, draws.rng.randrange(2)), [_swapped(call, right, word) for call in calls]

"""Mistakes that a synthesiser makes on purpose: a solution that does not do what its query asks for, in one of six
ways."""

from __future__ import annotations

from collections.abc import Callable

from agentevolver.builtin.teacher.calls import CHANGES, Call
from agentevolver.builtin.teacher.intents import Intent, write_query
from agentevolver.builtin.teacher.observed import Seen
from agentevolver.builtin.teacher.prompt import Draws

_FREE_WORDS = ("TAG", "DAY", "NAME", "WORD")
# Kinds whose wording names a thing that must exist, and the table where it would.
_TABLE_OF = {
    "note_del": "note",
    "note_which": "note",
    "note_retag": "note",
    "refund": "order",
    "price": "product",
    "pay_price": "product",
}
_Changed = tuple[str | None, list[Call]]
_Way = Callable[[Intent, list[Call], Seen, Draws], _Changed | None]


def hallucinate(query: str, intent: Intent, calls: list[Call], seen: Seen, draws: Draws) -> tuple[str, str, list[Call]]:
    """Return which mistake, and the query and calls with it in them."""
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


def _id_of(call: Call) -> str | None:
    return next((arg for arg in call.args if len(arg) > 1 and arg[0] in "neom" and arg[1:].isdecimal()), None)


def _replace(calls: list[Call], old: Call, new: Call) -> list[Call]:
    return [new if call == old else call for call in calls]


def _swapped(call: Call, old: str, new: str) -> Call:
    return Call(call.tool, tuple(new if arg == old else arg for arg in call.args))


def _invalid_tool(intent: Intent, calls: list[Call], seen: Seen, draws: Draws) -> _Changed:
    victim = draws.rng.choice([call for call in calls if call.tool != "done"])
    tool = f"{victim.app}.{draws.rng.choice(('remove', 'update', 'search', 'get', 'delete'))}"
    return None, _replace(calls, victim, Call(tool, victim.args))


def _missing_step(intent: Intent, calls: list[Call], seen: Seen, draws: Draws) -> _Changed:
    changes = [call for call in calls if call.tool in CHANGES]
    if changes:
        victim = draws.rng.choice(changes)
        return None, [call for call in calls if call != victim]
    return None, [*calls[:-1], Call("done")]


def _wrong_id(intent: Intent, calls: list[Call], seen: Seen, draws: Draws) -> _Changed | None:
    victim = next((call for call in calls if _id_of(call)), None)
    key = _id_of(victim) if victim is not None else None
    if victim is None or key is None:
        return None
    wrong = draws.rng.choice(
        [f"{key[0]}{i}" for i in range(1, 30) if f"{key[0]}{i}" not in (key, *(_id_of(c) for c in calls))]
    )
    return None, _replace(calls, victim, _swapped(victim, key, wrong))


def _wrong_answer(intent: Intent, calls: list[Call], seen: Seen, draws: Draws) -> _Changed:
    right = calls[-1].args[0]
    others = [w for words in seen.words.values() if right in words for w in words if w != right]
    wrong = (
        str(int(right) + draws.rng.choice((1, 2, 5))) if right.isdecimal() else draws.rng.choice(others or ["unknown"])
    )
    return None, [*calls[:-1], Call("done", (wrong,))]


def _wrong_value(intent: Intent, calls: list[Call], seen: Seen, draws: Draws) -> _Changed | None:
    """The solution does it with another amount, hour, person, tag or day than the query says."""
    victims = [
        (call, arg) for call in calls if call.tool in CHANGES for arg in call.args if arg in intent.slots.values()
    ]
    if not victims:
        return None
    victim, right = draws.rng.choice(victims)
    others = sorted(
        {w for kind in _FREE_WORDS if right in seen.words.get(kind, []) for w in seen.words[kind] if w != right}
    )
    wrong = str(int(right) + 1) if right.isdecimal() else draws.rng.choice(others) if others else None
    return None if wrong is None else (None, _replace(calls, victim, _swapped(victim, right, wrong)))


def _unseen(intent: Intent, calls: list[Call], seen: Seen, draws: Draws) -> _Changed | None:
    """The query speaks of a thing that nobody saw there, and the solution goes on as if it were the one that was."""
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

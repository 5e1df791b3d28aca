"""Goal of a task in a partly known world: the requested changes, the answer, and the next call.

`goal` raises MissingLookup if a look-up is missing and Impossible if the world lacks what the task names. `next_call`
uses only what the episode showed, so it acts, and learns from errors, like a newcomer to the site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from agentevolver.recipes.offline.teacher import app_goals
from agentevolver.recipes.offline.teacher.calls import GUARDED, NEED_LOGIN, TeacherCall
from agentevolver.recipes.offline.teacher.intents import Intent
from agentevolver.recipes.offline.teacher.observed import MissingLookup, ObservedEpisode, ObservedFacts, Row
from agentevolver.recipes.offline.teacher.rules import SiteRules

Effect = tuple[str, ...]


class Impossible(Exception):
    """The world lacks what the task names."""


@dataclass(slots=True)
class TeacherGoal:
    """The requested changes, the answer (None if no answer is asked for), and the look-ups needed."""

    effects: list[Effect] = field(default_factory=list)
    answer: str | None = None
    looked: list[TeacherCall] = field(default_factory=list)


class _View:
    def __init__(self, facts: ObservedFacts) -> None:
        self._facts = facts
        self.looked: list[TeacherCall] = []

    def rows(self, tool: str, *args: str) -> list[Row]:
        call = TeacherCall(tool, args)
        self._note(call)
        return self._facts.look(call)

    def one(self, what: str, tool: str, *args: str) -> Row:
        rows = self.rows(tool, *args)
        if len(rows) != 1:
            raise Impossible(f"there is {'no' if not rows else 'more than one'} {what}")
        return rows[0]

    def price(self, word: str) -> str:
        """Return the price of a product; buying does not change it."""
        if (price := self._facts.prices.get(word)) is None:
            return self.one(f"product {word}", "shop.find", word)[1]
        self._note(TeacherCall("shop.find", (word,)))
        return str(price)

    def _note(self, call: TeacherCall) -> None:
        if call not in self.looked:
            self.looked.append(call)


_Maker = Callable[[_View, dict[str, str]], TeacherGoal]


def _note_retag(v: _View, s: dict[str, str]) -> TeacherGoal:
    row = v.one(f"note {s['w']}", "note.find", s["w"])
    return TeacherGoal([("note.tag", row[0], s["t"])] if row[2] != s["t"] else [])


def _cal_move(v: _View, s: dict[str, str]) -> TeacherGoal:
    row = v.one(f"meeting with {s['p']}", "cal.find", s["p"])
    return TeacherGoal([("cal.move", row[0], s["d"])] if row[2] != s["d"] else [])


def _order(v: _View, s: dict[str, str]) -> TeacherGoal:
    rows = [row for row in v.rows("shop.orders") if row[1] == s["w"]]
    if len(rows) != 1:
        raise Impossible(f"there is not exactly one order of {s['w']}")
    return TeacherGoal([("shop.ret", rows[0][0])])


def _buy(v: _View, s: dict[str, str]) -> TeacherGoal:
    # No look-up here: a site may sell without one, and `prepared` adds it where the site requires it.
    return TeacherGoal([("shop.buy", s["w"], s["n"])])


def _pay_met(v: _View, s: dict[str, str]) -> TeacherGoal:
    return TeacherGoal([("bank.pay", v.one(f"single meeting on {s['d']}", "cal.list", s["d"])[1], s["n"])])


def _del_tag(v: _View, s: dict[str, str]) -> TeacherGoal:
    rows = v.rows("note.list", s["t"])
    if not rows:
        raise Impossible(f"there is no note with tag {s['t']}")
    return TeacherGoal([("note.del", row[0]) for row in rows])


def _if_price(v: _View, s: dict[str, str]) -> TeacherGoal:
    price = int(v.one(f"product {s['w']}", "shop.find", s["w"])[1])
    return TeacherGoal([("shop.buy", s["w"], "1") if price < int(s["n"]) else ("note.add", s["w"], s["t"])])


def _if_free(v: _View, s: dict[str, str]) -> TeacherGoal:
    met = v.rows("cal.list", s["d"])
    return TeacherGoal([("mail.send", s["p"], s["w"]) if met else ("cal.add", s["p"], s["d"], s["h"])])


def _if_rich(v: _View, s: dict[str, str]) -> TeacherGoal:
    rich = int(v.rows("bank.bal")[0][0]) > int(s["n"])
    return TeacherGoal([("bank.pay", s["p"], s["m"]) if rich else ("mail.send", s["p"], s["w"])])


_GOALS: dict[str, _Maker] = {
    "note_add": lambda v, s: TeacherGoal([("note.add", s["w"], s["t"])]),
    "price": lambda v, s: TeacherGoal(answer=v.one(f"product {s['w']}", "shop.find", s["w"])[1]),
    "note_which": lambda v, s: TeacherGoal(answer=v.one(f"note {s['w']}", "note.find", s["w"])[2]),
    "cal_when": lambda v, s: TeacherGoal(answer=v.one(f"meeting with {s['p']}", "cal.find", s["p"])[2]),
    "mail_send": lambda v, s: TeacherGoal([("mail.send", s["p"], s["w"])]),
    "mail_what": lambda v, s: TeacherGoal(answer=v.one(f"mail from {s['p']}", "mail.find", s["p"])[2]),
    "note_retag": _note_retag,
    "cal_move": _cal_move,
    "note_count": lambda v, s: TeacherGoal(answer=str(len(v.rows("note.list", s["t"])))),
    "cal_add": lambda v, s: TeacherGoal([("cal.add", s["p"], s["d"], s["h"])]),
    "mail_pass": lambda v, s: TeacherGoal(
        [("mail.send", s["q"], v.one(f"mail from {s['p']}", "mail.find", s["p"])[2])]
    ),
    "balance": lambda v, s: TeacherGoal(answer=v.rows("bank.bal")[0][0]),
    "pay": lambda v, s: TeacherGoal([("bank.pay", s["p"], s["n"])]),
    "note_del": lambda v, s: TeacherGoal([("note.del", v.one(f"note {s['w']}", "note.find", s["w"])[0])]),
    "cal_del": lambda v, s: TeacherGoal([("cal.del", v.one(f"meeting with {s['p']}", "cal.find", s["p"])[0])]),
    "mail_del": lambda v, s: TeacherGoal([("mail.del", v.one(f"mail from {s['p']}", "mail.find", s["p"])[0])]),
    "refund": _order,
    "buy": _buy,
    "pay_price": lambda v, s: TeacherGoal([("bank.pay", s["p"], v.one(f"product {s['w']}", "shop.find", s["w"])[1])]),
    "pay_met": _pay_met,
    "del_tag": _del_tag,
    "if_price": _if_price,
    "if_free": _if_free,
    "if_rich": _if_rich,
}
# Tools that a task of a kind may need; they decide which rules of a site concern it.
TOOLS_OF: dict[str, frozenset[str]] = {
    "balance": frozenset({"bank.bal"}),
    "pay": frozenset({"bank.pay"}),
    "note_retag": frozenset({"note.tag"}),
    "cal_move": frozenset({"cal.move"}),
    "cal_add": frozenset({"cal.add"}),
    "note_del": frozenset({"note.del"}),
    "cal_del": frozenset({"cal.del"}),
    "mail_del": frozenset({"mail.del"}),
    "refund": frozenset({"shop.ret"}),
    "buy": frozenset({"shop.buy"}),
    "pay_price": frozenset({"bank.pay"}),
    "pay_met": frozenset({"bank.pay"}),
    "del_tag": frozenset({"note.del"}),
    "if_price": frozenset({"shop.buy"}),
    "if_free": frozenset({"cal.add"}),
    "if_rich": frozenset({"bank.bal", "bank.pay"}),
}


def tools_of(intent: Intent) -> frozenset[str]:
    """Return the tools that a task may need; they decide which rules of a site concern it."""
    return app_goals.tools_of_links(intent.links) if intent.links else TOOLS_OF.get(intent.kind, frozenset())


def goal(intent: Intent, facts: ObservedFacts, links: int | None = None) -> TeacherGoal:
    """Return the goal of an intent, or of its first `links` links. Raises MissingLookup or Impossible."""
    view = _View(facts)
    if not intent.links:
        made = _GOALS[intent.kind](view, intent.slots)
        made.looked = view.looked
        return made
    count = len(intent.links) if links is None else links
    made = TeacherGoal(app_goals.effects(view, intent.slots, intent.links, count))
    # Looking up the opening's subjects is right even if no link needs them.
    made.looked = list(dict.fromkeys([*app_goals.opening_looks(intent.slots), *view.looked]))
    return made


def next_call(intent: Intent, episode: ObservedEpisode) -> TeacherCall:
    """Return the next call towards a task, from what the episode showed.

    Links are done in order; the look-ups of a link follow the changes of the earlier ones. Raises Impossible.
    """
    for links in range(1, len(intent.links) + 1) or (None,):
        try:
            wanted = goal(intent, episode.facts, links)
        except MissingLookup as missing:
            return prepared(missing.call, episode)
        open_effects = Counter(wanted.effects) - episode.net_effects()
        for effect in wanted.effects:
            if open_effects[effect] > 0:
                return prepared(TeacherCall(effect[0], effect[1:]), episode)
    return TeacherCall("done", () if wanted.answer is None else (wanted.answer,))


def prepared(call: TeacherCall, episode: ObservedEpisode) -> TeacherCall:
    """Return a call in the site's form, or the call that the site requires before it, by the known rules."""
    rules, worked = episode.rules, episode.worked
    if call.tool == "shop.buy" and rules.get("look") == "first":
        look = TeacherCall("shop.find", call.args[:1])
        if look not in worked:
            return look
    if call.tool in NEED_LOGIN and rules.get("login") == "pin" and not episode.logged_in:
        return (
            TeacherCall("bank.login", (episode.facts.pin,))
            if episode.facts.pin and TeacherCall("me.pin") in worked
            else TeacherCall("me.pin")
        )
    if call.tool in GUARDED and rules.get("guard") == "doc":
        manual = TeacherCall("doc", (call.tool,))
        if manual not in worked:
            return manual
    return as_wanted(call, rules)


def as_wanted(call: TeacherCall, rules: SiteRules) -> TeacherCall:
    """Return a call with its arguments in the site's order, confirmed if the site requires it."""
    if call.tool == "bank.pay" and rules.get("pay") == "amount":
        return TeacherCall(call.tool, (call.args[1], call.args[0]))
    if call.tool == "cal.add" and rules.get("plan") == "day":
        return TeacherCall(call.tool, (*call.args[1:], call.args[0]))
    if call.tool in GUARDED and rules.get("guard") == "yes":
        return TeacherCall(call.tool, (*call.args, "yes"))
    return call

"""Observed state of a pocket world: tools, words, look-ups, changes, and the site's rules.

`ObservedFacts` describe the *start* of the episode: rows that a change made or altered are left out, so that a solution
based on them works in a fresh instance. Asking for a fact that no text showed raises `MissingLookup` with the call that
would show it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentevolver.llm.prompts import StepText
from agentevolver.recipes.offline.teacher.calls import (
    CHANGES,
    GUARDED,
    LOOKUPS,
    USUAL,
    Signature,
    TeacherCall,
    canonical,
    read_call,
    read_usage,
)
from agentevolver.recipes.offline.teacher.prompt import NotUnderstood
from agentevolver.recipes.offline.teacher.rules import SiteRules

Row = tuple[str, ...]
TABLES = {
    "note.find": "note",
    "note.list": "note",
    "cal.find": "cal",
    "cal.list": "cal",
    "mail.find": "mail",
    "shop.orders": "order",
}
_NATIVE = "<tool_call>"
_TABLE_OF_APP = {"note": "note", "cal": "cal", "mail": "mail", "shop": "order"}
# The column of stored rows (id first) that a look-up's argument selects.
_COLUMN = {"note.find": 1, "note.list": 2, "cal.find": 1, "cal.list": 2, "mail.find": 1}


class MissingLookup(Exception):
    """A fact is unknown; `call` would show it."""

    def __init__(self, call: TeacherCall) -> None:
        super().__init__(str(call))
        self.call = call


@dataclass(slots=True)
class ObservedFacts:
    """Rows by table and id, and the look-ups that were answered in full.

    Rows: note (id, thing, tag), cal (id, person, day, hour), mail (id, person, text), order (id, thing). A product is
    (price, left) by thing, or None if the shop does not have it. `prices` also covers things bought before their first
    look-up. Their stock at the start is unknown, so `products` lacks them.
    """

    rows: dict[str, dict[str, Row]] = field(default_factory=lambda: {"note": {}, "cal": {}, "mail": {}, "order": {}})
    products: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    prices: dict[str, int] = field(default_factory=dict)
    balance: int | None = None
    pin: str | None = None
    answered: set[TeacherCall] = field(default_factory=set)

    def look(self, call: TeacherCall) -> list[Row]:
        """Return the rows that a look-up shows; raises MissingLookup if they are unknown."""
        if call.tool == "shop.find":
            if call.args[0] not in self.products:
                raise MissingLookup(call)
            product = self.products[call.args[0]]
            return [] if product is None else [(call.args[0], str(product[0]), str(product[1]))]
        if call.tool in ("bank.bal", "me.pin"):
            value = self.balance if call.tool == "bank.bal" else self.pin
            if value is None:
                raise MissingLookup(call)
            return [(str(value),)]
        rows = list(self.rows[TABLES[call.tool]].values())
        if call.tool in _COLUMN:
            rows = [row for row in rows if row[_COLUMN[call.tool]] == call.args[0]]
        # A row that another look-up showed answers `find`, since names are unique; a list may have more rows.
        if call not in self.answered and not (rows and call.tool.endswith(".find")):
            raise MissingLookup(call)
        return rows

    def take(self, call: TeacherCall, rows: Sequence[Row]) -> None:
        self.answered.add(call)
        if call.tool == "shop.find":
            self.products[call.args[0]] = (int(rows[0][1]), int(rows[0][2])) if rows else None
            self.take_prices(rows)
        elif call.tool == "bank.bal":
            self.balance = int(rows[0][0])
        elif call.tool == "me.pin":
            self.pin = rows[0][0]
        else:
            self.rows[TABLES[call.tool]].update({row[0]: row for row in rows})

    def take_prices(self, rows: Sequence[Row]) -> None:
        self.prices.update({row[0]: int(row[1]) for row in rows})


def read_rows(call: TeacherCall, observation: str) -> list[Row] | None:
    """Return the rows in a look-up's observation, in the order of `ObservedFacts`, or None if it is not one."""
    if call.tool not in LOOKUPS or observation.startswith("err") or len(call.args) != len(USUAL[call.tool]):
        return None
    if observation.strip() == "none":
        return []
    pattern = {
        "note.find": r"(\w+) (n\d+) (\w+)",
        "note.list": r"(\w+) (n\d+)",
        "cal.find": r"(\w+) (e\d+) (\w+) (\d+)",
        "cal.list": r"(\w+) (e\d+) (\d+)",
        "mail.find": r"(\w+) (m\d+) (\w+)",
        "shop.orders": r"(\w+) (o\d+)",
        "shop.find": r"(\w+) price (\d+) left (\d+)",
        "bank.bal": r"balance (\d+)",
        "me.pin": r"pin (\d+)",
    }[call.tool]
    found = [re.fullmatch(pattern, part.strip()) for part in observation.split(" , ")]
    if not all(found):
        return None
    rows = [match.groups() for match in found if match is not None]
    if call.tool in ("shop.find", "bank.bal", "me.pin"):
        return [tuple(row) for row in rows]
    if call.tool == "note.list":
        return [(key, word, call.args[0]) for word, key in rows]
    if call.tool == "cal.list":
        return [(key, name, call.args[0], hour) for name, key, hour in rows]
    return [(row[1], row[0], *row[2:]) for row in rows]


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """A step; `call` is None if the action is no call."""

    index: int
    call: TeacherCall | None
    observation: str

    @property
    def failed(self) -> bool:
        return self.call is None or self.observation.startswith("err")

    @property
    def changed(self) -> bool:
        return self.call is not None and self.call.tool in CHANGES and self.observation.startswith("ok")


@dataclass(slots=True)
class ObservedEpisode:
    site: str = ""
    tools: dict[str, Signature] = field(default_factory=dict)
    words: dict[str, list[str]] = field(default_factory=dict)
    facts: ObservedFacts = field(default_factory=ObservedFacts)
    rules: SiteRules = field(default_factory=SiteRules)
    steps: list[ObservedStep] = field(default_factory=list)
    worked: set[TeacherCall] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    effects: list[tuple[str, ...]] = field(default_factory=list)
    answer: str | None = None
    _made: dict[str, int] = field(default_factory=dict)
    _spent: int | None = 0

    @property
    def logged_in(self) -> bool:
        return any(call.tool == "bank.login" for call in self.worked)

    def follow(self, steps: Sequence[StepText]) -> None:
        complete = bool(steps) and steps[0].index == 0
        for step in steps:
            call = read_call(step.action)
            seen = ObservedStep(step.index, call, step.observation.strip())
            self.steps.append(seen)
            if call is not None:
                self._take(seen, call, complete=complete)

    def _take(self, step: ObservedStep, call: TeacherCall, *, complete: bool) -> None:
        self.rules.learn(step.index, call, step.observation, self.worked, complete=complete)
        if step.observation.startswith("use ") or step.observation.startswith("err use "):
            self.tools.update(read_usage(step.observation))
        if step.observation.startswith("tools "):
            self.tools.update(
                {tool: USUAL[tool] for tool in step.observation.split()[1:] if tool in USUAL and tool not in self.tools}
            )
        if step.failed:
            return
        if call.tool == "done":
            self.answer = " ".join(call.args)
        elif step.changed:
            self._change(call, step.observation)
        elif (rows := read_rows(call, step.observation)) is not None:
            self._look(call, rows)
        self.worked.add(call)

    def _look(self, call: TeacherCall, rows: list[Row]) -> None:
        if call.tool == "bank.bal":
            if self._spent is not None and self.facts.balance is None:
                self.facts.balance = int(rows[0][0]) + self._spent
            return
        if call.tool == "shop.find" and f"product {call.args[0]}" in self.touched:
            self.facts.take_prices(rows)
            return
        if call.tool == "shop.find" or call.tool == "me.pin":
            self.facts.take(call, rows)
            return
        table = TABLES[call.tool]
        untouched = [row for row in rows if row[0] not in self.touched]
        self.facts.rows[table].update({row[0]: row for row in untouched})
        if f"table {table}" not in self.touched:
            self.facts.answered.add(call)

    def _change(self, call: TeacherCall, observation: str) -> None:
        effect = canonical(call)
        app = _TABLE_OF_APP.get(call.app)
        if app and call.tool != "mail.send":
            self.touched.add(f"table {app}")
        if made := re.fullmatch(r"ok ([neo]\d+)", observation):
            self.touched.add(made[1])
            if call.tool != "shop.buy":
                self._made[made[1]] = len(self.effects)
        if call.tool in GUARDED:
            self.touched.add(effect[1])
        if call.tool == "bank.pay" and self._spent is not None:
            self._spent += int(effect[2])
        if call.tool == "shop.buy":
            product = self.facts.products.get(effect[1])
            self._spent = None if product is None or self._spent is None else self._spent + product[0] * int(effect[2])
            self.touched.add(f"product {effect[1]}")
        self.effects.append(effect)

    def net_effects(self) -> Counter[tuple[str, ...]]:
        """Return the net changes: things made and deleted again cancel out; of several moves of a thing only the last
        counts."""
        kept: list[tuple[str, ...] | None] = list(self.effects)
        last: dict[tuple[str, str], int] = {}
        for i, effect in enumerate(self.effects):
            if effect[0] in ("note.del", "cal.del") and effect[1] in self._made:
                kept[i] = kept[self._made[effect[1]]] = None
            if effect[0] in ("note.tag", "cal.move"):
                if (effect[0], effect[1]) in last:
                    kept[last[effect[0], effect[1]]] = None
                last[effect[0], effect[1]] = i
                table, column = ("note", 2) if effect[0] == "note.tag" else ("cal", 2)
                row = self.facts.rows[table].get(effect[1])
                if row is not None and row[column] == effect[2]:
                    kept[i] = None
        return Counter(effect for effect in kept if effect is not None)


def see(sections: Mapping[str, str], steps: Sequence[StepText]) -> ObservedEpisode:
    """Return what a prompt's sections and its transcript's steps show. Raises NotUnderstood for native tool calls."""
    opening = sections.get("opening", "")
    told = f"{opening}\n{sections.get('profile', '')}"
    if _NATIVE in opening or any(_NATIVE in step.action for step in steps):
        raise NotUnderstood("calls are native tool calls (native_tools, syntax: json): it reads a line a call")
    seen = ObservedEpisode()
    site = re.search(r"\bsite (k\d+)\b", opening)
    seen.site = site[1] if site else ""
    seen.tools = {**_schema_tools(sections.get("tools", "")), **read_usage(told)}
    seen.words = {**_profile_words(told), **_schema_words(sections.get("tools", "")), **_opening_words(opening)}
    seen.follow(steps)
    return seen


def _opening_words(text: str) -> dict[str, list[str]]:
    """Read lines like `- WORD: a thing, one of: milk bread`."""
    return {
        kind: words.split() for kind, words in re.findall(r"^- ([A-Z]+): [^:\n]*one of: ([a-z ]+)$", text, re.MULTILINE)
    }


def _profile_words(text: str) -> dict[str, list[str]]:
    found = {}
    if match := re.search(r"\btag: one of ([a-z, ]+)", text):
        found["TAG"] = re.findall(r"[a-z]+", match[1])
    if re.search(r"\bday: mon to fri\b", text):
        found["DAY"] = ["mon", "tue", "wed", "thu", "fri"]
    return found


def _schemas(text: str) -> list[dict[str, object]]:
    try:
        data = json.loads(text) if text.strip() else []
    except ValueError:
        return []
    functions = (
        [item.get("function", item) for item in data if isinstance(item, dict)] if isinstance(data, list) else []
    )
    return [f for f in functions if isinstance(f, dict)]


def _schema_tools(text: str) -> dict[str, Signature]:
    return {str(f["name"]): USUAL[str(f["name"])] for f in _schemas(text) if f.get("name") in USUAL}


def _schema_words(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for match in re.finditer(r'"([a-z]+)": \{[^{}]*"description": "[^"]*one of: ([a-z ]+)"', text):
        found.setdefault(match[1].upper(), match[2].split())
    return found

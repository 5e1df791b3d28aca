"""The state of one episode's world and the tools that act on it. A world follows from (site, seed) alone.

A call either succeeds or raises `CallError` before anything has changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from env_service.environments.pocket.calls import CallError, PocketCall, Syntax, usage
from env_service.environments.pocket.quirks import Quirks, demands, quirks_of, signature
from env_service.environments.pocket.tools import APPS, CONFIRM, KIND_CHECKS, TOOLS, Param
from env_service.environments.pocket.wordings import DAYS, FIRST_HOUR, LAST_HOUR, NAMES, TAGS, WORDS

T = TypeVar("T")
Row = tuple[str | int, ...]
Facts = dict[tuple[str | int, ...], Row | int]


@dataclass(slots=True)
class Tables:
    """The graded state. `notes` (thing, tag), `meetings` (person, day, hour), `mails` (person, text), `orders` (thing,)
    by id; `products` (price, left) by thing; `sent` (person, text) and `paid` (person, amount) in order; `balance` in
    whole coins."""

    notes: dict[str, tuple[str, str]]
    meetings: dict[str, tuple[str, str, int]]
    mails: dict[str, tuple[str, str]]
    orders: dict[str, tuple[str]]
    products: dict[str, tuple[int, int]]
    balance: int
    sent: list[tuple[str, str]] = field(default_factory=list)
    paid: list[tuple[str, int]] = field(default_factory=list)

    def facts(self) -> Facts:
        """The state as flat facts: a row under (table, id), or a count under (table, *row) where rows have no id."""
        out: Facts = {("balance",): self.balance}
        for name, table in (
            ("note", self.notes),
            ("meeting", self.meetings),
            ("mail", self.mails),
            ("order", self.orders),
        ):
            for key, row in table.items():
                out[name, key] = row
        for key, product in self.products.items():
            out["product", key] = product
        for name, log in (("sent", self.sent), ("paid", self.paid)):
            for entry in log:
                count = out.get((name, *entry), 0)
                out[name, *entry] = (count if isinstance(count, int) else 0) + 1
        return out


def make_tables(rng: random.Random) -> Tables:
    """Draw a start state. Each thing is in one table only; ids are shuffled so that they cannot be memorised."""
    things, people = rng.sample(WORDS, len(WORDS)), rng.sample(NAMES, len(NAMES))
    ids = [rng.sample(range(1, 10), 5) for _ in range(4)]
    return Tables(
        notes={f"n{i}": (w, rng.choice(TAGS)) for i, w in zip(ids[0], things[:5], strict=True)},
        meetings={
            f"e{i}": (p, rng.choice(DAYS), rng.randint(FIRST_HOUR, LAST_HOUR))
            for i, p in zip(ids[1][:4], people[:4], strict=True)
        },
        mails={f"m{i}": (p, w) for i, p, w in zip(ids[2][:3], people[4:7], things[13:16], strict=True)},
        orders={f"o{i}": (w,) for i, w in zip(ids[3][:3], things[10:13], strict=True)},
        products={w: (rng.randint(2, 9), rng.randint(1, 5)) for w in things[5:10]},
        balance=rng.randint(30, 69),
    )


class PocketWorld:
    """A site's apps over one set of tables. `answer` is None until `done` was called."""

    def __init__(self, site: int, seed: str, syntax: Syntax = "compact") -> None:
        self.quirks: Quirks = quirks_of(site)
        self.site = site
        self.syntax: Syntax = syntax
        rng = random.Random(f"pocket-world-{site}-{seed}")
        self.tables = make_tables(rng)
        self.pin = str(rng.randint(1, 9))
        self.logged_in = False
        self.manuals_read: set[str] = set()
        self.looked_up: set[str] = set()
        self.answer: str | None = None

    def call(self, call: PocketCall) -> str:
        """Carry out a call and return the observation, or `err REASON` if it was refused."""
        try:
            return self.carry_out(call)
        except CallError as error:
            return f"err {error}"

    def carry_out(self, call: PocketCall) -> str:
        """Carry out a call and return the observation; raises CallError for a refused call, which changes nothing."""
        tool = TOOLS.get(call.tool)
        if tool is None:
            raise CallError(f"no tool {call.tool[:20]} , try doc")
        if tool.needs_login and self.quirks.login == "pin" and not self.logged_in:
            raise CallError("login first")
        if tool.guarded and self.quirks.guard == "doc" and tool.name not in self.manuals_read:
            raise CallError(f"read doc {tool.name} first")
        args = self._bind(call)
        return _DO[tool.name](self, *args)

    def usage(self, tool: str) -> str:
        return usage(tool, signature(tool, self.quirks), self.syntax)

    def hints(self, call: PocketCall | None) -> tuple[str, str]:
        """Return the usage of a refused call's tool at this site ("" for an unreadable call), and what to do before the
        next try."""
        if call is None or call.tool not in TOOLS:
            return "", "call doc to see the apps and their tools"
        before = list(demands(call.tool, self.quirks))
        if TOOLS[call.tool].guarded and self.quirks.guard == "doc" and call.tool not in self.manuals_read:
            before.append(f"call doc {call.tool} first")
        return f"use {self.usage(call.tool)}", " , then ".join(before or ["correct the arguments and call it again"])

    def _bind(self, call: PocketCall) -> list[str]:
        wanted = signature(call.tool, self.quirks)
        if call.tool == "done":
            return [" ".join(call.args)]
        given = self._by_position(call, wanted)
        if wanted and wanted[-1] is CONFIRM and given[-1:] != ["yes"]:
            if self._fits(given[: len(wanted) - 1], wanted[:-1]):
                raise CallError("add yes at the end" if call.keys is None else 'add "confirm": "yes"')
            raise CallError(f"use {self.usage(call.tool)}")
        if not self._fits(given, wanted):
            raise CallError(f"use {self.usage(call.tool)}")
        by_key = {p.key: a for p, a in zip(wanted, given, strict=False)}
        return [by_key[p.key] for p in TOOLS[call.tool].params if p.key in by_key]

    def _by_position(self, call: PocketCall, wanted: tuple[Param, ...]) -> list[str]:
        if call.keys is None:
            return list(call.args)
        if not set(call.keys) <= {p.key for p in wanted}:
            raise CallError(f"use {self.usage(call.tool)}")
        if TOOLS[call.tool].ordered:
            # Where the order is a quirk of the site, the order of the JSON keys counts.
            return list(call.args)
        named = dict(zip(call.keys, call.args, strict=True))
        return [named[p.key] for p in wanted if p.key in named]

    @staticmethod
    def _fits(args: list[str], wanted: tuple[Param, ...]) -> bool:
        least = sum(not p.optional for p in wanted)
        return least <= len(args) <= len(wanted) and all(
            KIND_CHECKS[p.kind](a) for p, a in zip(wanted, args, strict=False)
        )

    # ---- one method a tool; arguments are checked for kind already ----

    def _doc(self, name: str = "") -> str:
        if not name:
            return "apps " + " ".join(APPS)
        if name in APPS:
            return "tools " + " ".join(APPS[name])
        if name not in TOOLS:
            raise CallError(f"no tool {name[:20]} , try doc")
        self.manuals_read.add(name)
        return " , ".join((f"use {self.usage(name)}", *demands(name, self.quirks)))

    def _done(self, answer: str) -> str:
        self.answer = answer
        return "bye"

    def _me_pin(self) -> str:
        return f"pin {self.pin}"

    def _note_find(self, word: str) -> str:
        return _rows(f"{w} {k} {t}" for k, (w, t) in self.tables.notes.items() if w == word)

    def _note_list(self, tag: str) -> str:
        return _rows(f"{w} {k}" for k, (w, t) in self.tables.notes.items() if t == tag)

    def _note_add(self, word: str, tag: str) -> str:
        key = _free_id(self.tables.notes, "n")
        self.tables.notes[key] = (word, tag)
        return f"ok {key}"

    def _note_tag(self, key: str, tag: str) -> str:
        word, _ = _get(self.tables.notes, key)
        self.tables.notes[key] = (word, tag)
        return "ok"

    def _note_del(self, key: str) -> str:
        _get(self.tables.notes, key)
        del self.tables.notes[key]
        return "ok"

    def _cal_find(self, name: str) -> str:
        return _rows(f"{p} {k} {d} {h}" for k, (p, d, h) in self.tables.meetings.items() if p == name)

    def _cal_list(self, day: str) -> str:
        return _rows(f"{p} {k} {h}" for k, (p, d, h) in self.tables.meetings.items() if d == day)

    def _cal_add(self, name: str, day: str, hour: str) -> str:
        key = _free_id(self.tables.meetings, "e")
        self.tables.meetings[key] = (name, day, int(hour))
        return f"ok {key}"

    def _cal_move(self, key: str, day: str) -> str:
        name, _, hour = _get(self.tables.meetings, key)
        self.tables.meetings[key] = (name, day, hour)
        return "ok"

    def _cal_del(self, key: str) -> str:
        _get(self.tables.meetings, key)
        del self.tables.meetings[key]
        return "ok"

    def _mail_find(self, name: str) -> str:
        return _rows(f"{p} {k} {w}" for k, (p, w) in self.tables.mails.items() if p == name)

    def _mail_send(self, name: str, text: str) -> str:
        self.tables.sent.append((name, text))
        return "ok"

    def _mail_del(self, key: str) -> str:
        _get(self.tables.mails, key)
        del self.tables.mails[key]
        return "ok"

    def _bank_login(self, pin: str) -> str:
        if pin != self.pin:
            raise CallError("wrong pin , see me.pin")
        self.logged_in = True
        return "ok"

    def _bank_bal(self) -> str:
        return f"balance {self.tables.balance}"

    def _bank_pay(self, name: str, amount: str) -> str:
        if int(amount) > self.tables.balance:
            raise CallError(f"only {self.tables.balance} in the bank")
        self.tables.balance -= int(amount)
        self.tables.paid.append((name, int(amount)))
        return "ok"

    def _shop_find(self, word: str) -> str:
        self.looked_up.add(word)
        if word not in self.tables.products:
            return "none"
        price, left = self.tables.products[word]
        return f"{word} price {price} left {left}"

    def _shop_buy(self, word: str, qty: str) -> str:
        if self.quirks.look == "first" and word not in self.looked_up:
            raise CallError(f"find {word} first")
        if word not in self.tables.products:
            raise CallError(f"no product {word}")
        price, left = self.tables.products[word]
        if int(qty) > left:
            raise CallError(f"only {left} left")
        if price * int(qty) > self.tables.balance:
            raise CallError(f"only {self.tables.balance} in the bank")
        self.tables.products[word] = (price, left - int(qty))
        self.tables.balance -= price * int(qty)
        key = _free_id(self.tables.orders, "o")
        self.tables.orders[key] = (word,)
        return f"ok {key}"

    def _shop_orders(self) -> str:
        return _rows(f"{w} {k}" for k, (w,) in self.tables.orders.items())

    def _shop_ret(self, key: str) -> str:
        _get(self.tables.orders, key)
        del self.tables.orders[key]
        return "ok"


def _rows(rows: Iterable[str]) -> str:
    return " , ".join(rows) or "none"


def _free_id(table: Container[str], prefix: str) -> str:
    number = 1
    while f"{prefix}{number}" in table:
        number += 1
    return f"{prefix}{number}"


def _get(table: dict[str, T], key: str) -> T:
    if key not in table:
        raise CallError(f"no such id {key}")
    return table[key]


_DO: dict[str, Callable[..., str]] = {name: getattr(PocketWorld, "_" + name.replace(".", "_")) for name in TOOLS}

"""The task families of PocketWorld: 24, six on each of four levels.

1: one look-up or action. 2: a look-up then a change, a count, an argument order or a login. 3: removing, paying,
buying. 4: two apps, conditions, several objects. A plan knows the tools but no quirks (`quirks.adapt` adds those). The
last wording of each family is held out of training.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from env_service.environments.pocket.calls import PocketCall
from env_service.environments.pocket.wordings import DAYS, FIRST_HOUR, LAST_HOUR, NAMES, TAGS, WORDINGS, WORDS
from env_service.environments.pocket.world import Tables

Slots = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class TaskDraft:
    """A task drawn from a family: the values for its wording, the plan without `done`, and the answer or None."""

    slots: Slots
    plan: tuple[PocketCall, ...]
    answer: str | None = None


Maker = Callable[[Tables, random.Random], TaskDraft | None]


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of task: level 1 to 4, three wordings (the last is held out of training), and a maker, which returns None
    if the world does not suit."""

    name: str
    level: int
    wordings: tuple[str, str, str]
    make: Maker


FAMILIES: dict[str, Family] = {}


def _family(make: Maker) -> Maker:
    name = make.__name__.lstrip("_")
    FAMILIES[name] = Family(name, *WORDINGS[name], make)
    return make


def _call(text: str) -> PocketCall:
    tool, *args = text.split()
    return PocketCall(tool, tuple(args))


def _draft(slots: Slots, *plan: str, answer: str | int | None = None) -> TaskDraft:
    return TaskDraft(slots, tuple(map(_call, plan)), None if answer is None else str(answer))


def _hour(r: random.Random) -> int:
    return r.randint(FIRST_HOUR, LAST_HOUR)


def _other(r: random.Random, choices: tuple[str, ...], than: str) -> str:
    return r.choice([c for c in choices if c != than])


# ---- level 1 ----


@_family
def _note_add(s: Tables, r: random.Random) -> TaskDraft:
    w, t = r.choice(WORDS), r.choice(TAGS)
    return _draft({"w": w, "t": t}, f"note.add {w} {t}")


@_family
def _price(s: Tables, r: random.Random) -> TaskDraft:
    w = r.choice(list(s.products))
    return _draft({"w": w}, f"shop.find {w}", answer=s.products[w][0])


@_family
def _note_which(s: Tables, r: random.Random) -> TaskDraft:
    w, t = s.notes[r.choice(list(s.notes))]
    return _draft({"w": w}, f"note.find {w}", answer=t)


@_family
def _cal_when(s: Tables, r: random.Random) -> TaskDraft:
    p, d, _ = s.meetings[r.choice(list(s.meetings))]
    return _draft({"p": p}, f"cal.find {p}", answer=d)


@_family
def _mail_send(s: Tables, r: random.Random) -> TaskDraft:
    p, w = r.choice(NAMES), r.choice(WORDS)
    return _draft({"p": p, "w": w}, f"mail.send {p} {w}")


@_family
def _mail_what(s: Tables, r: random.Random) -> TaskDraft:
    p, w = s.mails[r.choice(list(s.mails))]
    return _draft({"p": p}, f"mail.find {p}", answer=w)


# ---- level 2 ----


@_family
def _note_retag(s: Tables, r: random.Random) -> TaskDraft:
    k = r.choice(list(s.notes))
    w, old = s.notes[k]
    t = _other(r, TAGS, old)
    return _draft({"w": w, "t": t}, f"note.find {w}", f"note.tag {k} {t}")


@_family
def _cal_move(s: Tables, r: random.Random) -> TaskDraft:
    k = r.choice(list(s.meetings))
    p, old, _ = s.meetings[k]
    d = _other(r, DAYS, old)
    return _draft({"p": p, "d": d}, f"cal.find {p}", f"cal.move {k} {d}")


@_family
def _note_count(s: Tables, r: random.Random) -> TaskDraft:
    t = r.choice(TAGS)
    return _draft({"t": t}, f"note.list {t}", answer=sum(tag == t for _, tag in s.notes.values()))


@_family
def _cal_add(s: Tables, r: random.Random) -> TaskDraft:
    p, d, h = r.choice(NAMES), r.choice(DAYS), _hour(r)
    return _draft({"p": p, "d": d, "h": h}, f"cal.add {p} {d} {h}")


@_family
def _mail_pass(s: Tables, r: random.Random) -> TaskDraft:
    p, w = s.mails[r.choice(list(s.mails))]
    q = _other(r, NAMES, p)
    return _draft({"p": p, "q": q}, f"mail.find {p}", f"mail.send {q} {w}")


@_family
def _balance(s: Tables, r: random.Random) -> TaskDraft:
    return _draft({}, "bank.bal", answer=s.balance)


# ---- level 3 ----


@_family
def _pay(s: Tables, r: random.Random) -> TaskDraft:
    p, n = r.choice(NAMES), r.randint(2, 9)
    return _draft({"p": p, "n": n}, f"bank.pay {p} {n}")


@_family
def _note_del(s: Tables, r: random.Random) -> TaskDraft:
    k = r.choice(list(s.notes))
    return _draft({"w": s.notes[k][0]}, f"note.find {s.notes[k][0]}", f"note.del {k}")


@_family
def _cal_del(s: Tables, r: random.Random) -> TaskDraft:
    k = r.choice(list(s.meetings))
    return _draft({"p": s.meetings[k][0]}, f"cal.find {s.meetings[k][0]}", f"cal.del {k}")


@_family
def _mail_del(s: Tables, r: random.Random) -> TaskDraft:
    k = r.choice(list(s.mails))
    return _draft({"p": s.mails[k][0]}, f"mail.find {s.mails[k][0]}", f"mail.del {k}")


@_family
def _refund(s: Tables, r: random.Random) -> TaskDraft:
    k = r.choice(list(s.orders))
    return _draft({"w": s.orders[k][0]}, "shop.orders", f"shop.ret {k}")


@_family
def _buy(s: Tables, r: random.Random) -> TaskDraft | None:
    w = r.choice(list(s.products))
    price, left = s.products[w]
    most = min(left, s.balance // price)
    if most < 1:
        return None
    n = r.randint(1, most)
    return _draft({"w": w, "n": n}, f"shop.buy {w} {n}")


# ---- level 4 ----


@_family
def _pay_price(s: Tables, r: random.Random) -> TaskDraft:
    p, w = r.choice(NAMES), r.choice(list(s.products))
    return _draft({"p": p, "w": w}, f"shop.find {w}", f"bank.pay {p} {s.products[w][0]}")


@_family
def _pay_met(s: Tables, r: random.Random) -> TaskDraft | None:
    alone = [(p, d) for p, d, _ in s.meetings.values() if sum(day == d for _, day, _ in s.meetings.values()) == 1]
    if not alone:
        return None
    p, d = r.choice(alone)
    n = r.randint(2, 9)
    return _draft({"n": n, "d": d}, f"cal.list {d}", f"bank.pay {p} {n}")


@_family
def _del_tag(s: Tables, r: random.Random) -> TaskDraft | None:
    by_tag = {t: [k for k, (_, tag) in s.notes.items() if tag == t] for t in TAGS}
    tags = [t for t, ids in by_tag.items() if 1 <= len(ids) <= 2]
    if not tags:
        return None
    t = r.choice(tags)
    return _draft({"t": t}, f"note.list {t}", *(f"note.del {k}" for k in by_tag[t]))


@_family
def _if_price(s: Tables, r: random.Random) -> TaskDraft:
    w, t, cheap = r.choice(list(s.products)), r.choice(TAGS), r.random() < 0.5
    price = s.products[w][0]
    n = r.randint(price + 1, price + 4) if cheap else r.randint(max(1, price - 3), price)
    return _draft({"w": w, "n": n, "t": t}, f"shop.find {w}", f"shop.buy {w} 1" if cheap else f"note.add {w} {t}")


@_family
def _if_free(s: Tables, r: random.Random) -> TaskDraft:
    busy = sorted({d for _, d, _ in s.meetings.values()})
    free = [d for d in DAYS if d not in busy]
    is_free = r.random() < 0.5 and bool(free)
    d = r.choice(free if is_free else busy)
    p, h, w = r.choice(NAMES), _hour(r), r.choice(WORDS)
    return _draft(
        {"d": d, "p": p, "h": h, "w": w}, f"cal.list {d}", f"cal.add {p} {d} {h}" if is_free else f"mail.send {p} {w}"
    )


@_family
def _if_rich(s: Tables, r: random.Random) -> TaskDraft:
    n = r.choice([40, 50, 60])
    p, m, w = r.choice(NAMES), r.randint(2, 9), r.choice(WORDS)
    return _draft(
        {"n": n, "p": p, "m": m, "w": w}, "bank.bal", f"bank.pay {p} {m}" if s.balance > n else f"mail.send {p} {w}"
    )


LEVELS: tuple[int, ...] = (1, 2, 3, 4)

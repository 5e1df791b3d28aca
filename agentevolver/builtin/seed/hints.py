"""How guidance reaches the seed policy, and the many ways the same guidance can be put.

At run time guidance is whatever was summarised from real failures, so the seed policy is trained on hints in other
words, other orders, in part, and beside advice that does not matter.
"""

from __future__ import annotations

import random

from env_service.environments.pocket.oracle import hint_parts
from env_service.environments.pocket.quirks import quirks_of

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
    """The user message of a task with guidance put before it; without a hint, the task alone."""
    return HINT_TEMPLATE.format(hint=hint, task=task) if hint else task


def draw_hint(rng: random.Random, task_id: str) -> tuple[str, frozenset[str]]:
    """Draw a hint that is true of a task's site, and which quirks it tells.

    Three in five are the plain hint in full; the others vary in words, order, completeness, idle advice and how lines
    are joined.
    """
    parts = hint_parts(task_id)
    quirks = list(parts)
    if rng.random() < 0.6:
        return " ; ".join(parts.values()), frozenset(quirks)
    rng.shuffle(quirks)
    told = quirks[: rng.choice((1, 2, 3, 4, 5, 5, 5))]
    site = quirks_of(int(task_id.split(".")[1][1:]))
    lines = [parts[q] if rng.random() < 0.4 else rng.choice(_PARAPHRASES[q, str(getattr(site, q))]) for q in told]
    for idle in rng.sample(_IDLE, rng.choice((0, 0, 1, 2))):
        lines.insert(rng.randrange(len(lines) + 1), idle)
    joint = rng.choice(_JOINTS)
    return joint.join(lines), frozenset(told)


def phrases() -> list[str]:
    """Every phrase a hint may hold, for the tokenizer's corpus."""
    return [p for group in _PARAPHRASES.values() for p in group] + list(_IDLE)

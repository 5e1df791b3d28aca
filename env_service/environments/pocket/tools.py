"""The tools of PocketWorld as data: names, parameters and guards.

Nothing here depends on a site: quirks.py changes a tool's signature, world.py carries out the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from env_service.environments.pocket.wordings import DAYS, NAMES, TAGS, WORDS


@dataclass(frozen=True, slots=True)
class Param:
    """One argument: JSON key and kind; usage lines show `kind.upper()`."""

    key: str
    kind: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class WorldTool:
    """A tool's name, its parameters in the usual order, and how sites may guard it."""

    name: str
    params: tuple[Param, ...]
    description: str
    guarded: bool = False
    needs_login: bool = False
    ordered: bool = False

    @property
    def app(self) -> str:
        """The part before the dot; tools without one belong to the session itself."""
        return self.name.split(".")[0]


def _is_int(text: str, low: int, high: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4 and low <= int(text) <= high


KIND_CHECKS: dict[str, Callable[[str], bool]] = {
    "word": WORDS.__contains__,
    "name": NAMES.__contains__,
    "tag": TAGS.__contains__,
    "day": DAYS.__contains__,
    "text": lambda t: t in WORDS or t in TAGS,
    "hour": lambda t: _is_int(t, 0, 23),
    "amount": lambda t: _is_int(t, 1, 999),
    "qty": lambda t: _is_int(t, 1, 99),
    "id": lambda t: len(t) >= 2 and t[0] in "neom" and _is_int(t[1:], 1, 999),
    "pin": lambda t: _is_int(t, 0, 9999),
    "yes": lambda t: t == "yes",
    "tool": lambda t: True,
    "answer": lambda t: True,
}
KIND_WORDS = {
    "word": "a thing, one of: " + " ".join(WORDS),
    "name": "a person, one of: " + " ".join(NAMES),
    "tag": "a tag, one of: " + " ".join(TAGS),
    "day": "a weekday, one of: " + " ".join(DAYS),
    "text": "one word: a thing or a tag",
    "hour": "an hour, 0 to 23",
    "amount": "a whole amount of money",
    "qty": "how many pieces",
    "id": "the id that a find or list call showed, like n3",
    "pin": "the PIN that me.pin shows",
    "yes": "the word yes",
    "tool": "a tool or an app; nothing lists the apps",
    "answer": "the bare answer if the task asks for one: a word or a number",
}
SHORT_KINDS = {
    "word": "a thing like milk",
    "name": "a person like ann",
    "tag": " ".join(TAGS),
    "day": " ".join(DAYS),
    "text": "a word or a tag",
    "id": "as find and list show it, like n3",
}

WORD, NAME, TAG, DAY, HOUR = (Param(k, k) for k in ("word", "name", "tag", "day", "hour"))
TEXT, AMOUNT, QTY, ID, PIN = (Param(k, k) for k in ("text", "amount", "qty", "id", "pin"))
CONFIRM = Param("confirm", "yes")

_ALL = (
    WorldTool(
        "doc",
        (Param("tool", "tool", optional=True),),
        "Read how a tool is used on this site, or list an app's tools, or all apps.",
    ),
    WorldTool(
        "done",
        (Param("answer", "answer", optional=True),),
        "Finish the task, with the answer if the task asks for one.",
    ),
    WorldTool("me.pin", (), "Show your PIN."),
    WorldTool("note.find", (WORD,), "Show the notes about a thing: thing, id, tag."),
    WorldTool("note.list", (TAG,), "Show the notes with a tag: thing, id."),
    WorldTool("note.add", (WORD, TAG), "Write a note about a thing under a tag."),
    WorldTool("note.tag", (ID, TAG), "Give a note another tag.", guarded=True),
    WorldTool("note.del", (ID,), "Delete a note.", guarded=True),
    WorldTool("cal.find", (NAME,), "Show the meetings with a person: person, id, day, hour."),
    WorldTool("cal.list", (DAY,), "Show the meetings of a day: person, id, hour."),
    WorldTool("cal.add", (NAME, DAY, HOUR), "Plan a meeting.", ordered=True),
    WorldTool("cal.move", (ID, DAY), "Move a meeting to another day.", guarded=True),
    WorldTool("cal.del", (ID,), "Cancel a meeting.", guarded=True),
    WorldTool("mail.find", (NAME,), "Show the mails from a person: person, id, text."),
    WorldTool("mail.send", (NAME, TEXT), "Send a person a mail of one word."),
    WorldTool("mail.del", (ID,), "Delete a mail.", guarded=True),
    WorldTool("bank.login", (PIN,), "Log in to the bank, which the shop uses too."),
    WorldTool("bank.bal", (), "Show the balance of your account.", needs_login=True),
    WorldTool("bank.pay", (NAME, AMOUNT), "Pay a person an amount.", needs_login=True, ordered=True),
    WorldTool("shop.find", (WORD,), "Show a product: price and how many are left."),
    WorldTool("shop.buy", (WORD, QTY), "Buy pieces of a product.", needs_login=True),
    WorldTool("shop.orders", (), "Show your orders: product, id."),
    WorldTool("shop.ret", (ID,), "Return an order.", guarded=True),
)
TOOLS: dict[str, WorldTool] = {t.name: t for t in _ALL}
APPS: dict[str, tuple[str, ...]] = {
    app: tuple(t.name for t in _ALL if t.app == app) for app in ("note", "cal", "mail", "bank", "shop", "me")
}

"""What a task asks for, read from English wordings and written in them.

The teacher writes in the first two wordings of each kind only; the others it understands. A query in none of them is
`None`, and the role that was asked about it answers 400.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WRITTEN = 2


@dataclass(frozen=True, slots=True)
class Intent:
    """A kind of task and what fills its wording: w thing, t tag, p and q people, d day, h hour, n and m numbers."""

    kind: str
    slots: dict[str, str]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of task: how hard it is (1 to 4) and its wordings."""

    level: int
    wordings: tuple[str, ...]


_ADD = ("add note {w} with tag {t}", "make a note {w} and tag it {t}", "add {w} to my {t} notes", "make a {t} note {w}")
_SEND = ("send {p} the word {w}", "mail {w} to {p}", "send a mail {w} to {p}", "write {w} to {p}")
_PLAN = ("plan {p} on {d} at {h}", "add a meeting with {p} on {d} at {h}", "meet {p} on {d} at {h}")
_GIVE = ("pay {p} {n}", "give {p} {n} coins", "send {p} {n} coins", "pay {p} {n} coins", "pay {n} to {p}")

KINDS: dict[str, Kind] = {
    "note_add": Kind(1, _ADD),
    "price": Kind(1, ("what is the price of {w}", "how much does {w} cost", "tell me the price of one {w}")),
    "note_which": Kind(1, ("what is the tag of note {w}", "which tag has note {w}", "tell me the tag of my note {w}")),
    "cal_when": Kind(
        1, ("what day do i see {p}", "when do i meet {p}", "on what day do i meet {p}", "when do i see {p}")
    ),
    "mail_send": Kind(1, _SEND),
    "mail_what": Kind(1, ("what did {p} write", "what is in the mail from {p}", "tell me what {p} did write")),
    "note_retag": Kind(2, ("set tag of note {w} to {t}", "move note {w} to tag {t}", "give note {w} the tag {t}")),
    "cal_move": Kind(2, ("move {p} to {d}", "see {p} on {d} instead", "move my meeting with {p} to {d}")),
    "note_count": Kind(
        2, ("how many notes have tag {t}", "count the notes with tag {t}", "how many {t} notes do i have")
    ),
    "cal_add": Kind(2, _PLAN),
    "mail_pass": Kind(
        2, ("send the mail from {p} to {q}", "pass what {p} did write on to {q}", "mail {q} what {p} did write")
    ),
    "balance": Kind(2, ("what is my balance", "how much money do i have", "tell me my balance")),
    "pay": Kind(3, _GIVE),
    "note_del": Kind(3, ("delete note {w}", "remove the note {w}", "delete my note {w}", "delete the note {w}")),
    "cal_del": Kind(
        3, ("cancel {p}", "cancel the meeting with {p}", "delete my meeting with {p}", "cancel my meeting with {p}")
    ),
    "mail_del": Kind(3, ("delete the mail from {p}", "remove what {p} did write", "delete what {p} did write")),
    "refund": Kind(3, ("return {w}", "give back my order {w}", "return my order {w}")),
    "buy": Kind(3, ("buy {n} {w}", "order {n} {w} in the shop", "buy me {n} {w}")),
    "pay_price": Kind(4, ("pay {p} the price of {w}", "give {p} what {w} does cost", "pay {p} what {w} does cost")),
    "pay_met": Kind(
        4,
        (
            "pay {n} to who i see on {d}",
            "give who i meet on {d} {n} coins",
            "pay who i see on {d} {n} coins",
            "pay who i meet on {d} {n}",
        ),
    ),
    "del_tag": Kind(
        4, ("delete all notes with tag {t}", "remove every note tagged {t}", "delete every note with tag {t}")
    ),
    "if_price": Kind(
        4,
        (
            "if {w} costs less than {n} buy 1 {w} else add note {w} with tag {t}",
            "buy 1 {w} if it costs less than {n} , else make a note {w} and tag it {t}",
            "if the price of {w} is less than {n} buy 1 {w} else make a note {w} and tag it {t}",
        ),
    ),
    "if_free": Kind(
        4,
        (
            "if i see nobody on {d} plan {p} on {d} at {h} else send {p} the word {w}",
            "plan {p} on {d} at {h} if i see nobody on {d} , else mail {w} to {p}",
            "if i meet nobody on {d} plan {p} on {d} at {h} else mail {w} to {p}",
        ),
    ),
    "if_rich": Kind(
        4,
        (
            "if i have more than {n} pay {p} {m} else send {p} the word {w}",
            "give {p} {m} coins if i have more than {n} , else mail {w} to {p}",
            "if my balance is more than {n} pay {p} {m} else mail {w} to {p}",
        ),
    ),
}

_SLOTS = {"d": "mon|tue|wed|thu|fri", "n": r"\d+", "m": r"\d+", "h": r"\d+"}
_POLITE = re.compile(r"^(?:please|can you|could you|i want you to|your task|task|do this|hi)\b[ :,]*")
_TAIL = re.compile(r"[ ,]+(?:please|now)$")


def _pattern(wording: str) -> re.Pattern[str]:
    seen: set[str] = set()
    parts = []
    for part in re.split(r"(\{\w\})", wording.replace(" ,", "")):
        name = part[1:-1]
        if not re.fullmatch(r"\{\w\}", part):
            parts.append(re.escape(part))
        elif name in seen:
            parts.append(f"(?P={name})")
        else:
            seen.add(name)
            parts.append(f"(?P<{name}>{_SLOTS.get(name, '[a-z]+')})")
    return re.compile("".join(parts))


_PATTERNS = [(name, _pattern(wording)) for name, kind in KINDS.items() for wording in kind.wordings]


def normal(query: str) -> str:
    """Return a query in lower case without politeness, commas and closing marks."""
    text = " ".join(query.lower().replace(",", " ").split()).rstrip(" .?!")
    while (shorter := _TAIL.sub("", _POLITE.sub("", text)).strip()) != text:
        text = shorter
    return text


def read_intent(query: str) -> Intent | None:
    """Return what a query asks for, None if it is in no wording that is understood. Guidance above the last line is
    passed over."""
    for text in dict.fromkeys((query, query.strip().rpartition("\n")[2])):
        plain = normal(text)
        for name, pattern in _PATTERNS:
            if match := pattern.fullmatch(plain):
                return Intent(name, match.groupdict())
    return None


def write_query(intent: Intent, wording: int) -> str:
    """Return an intent in one of the wordings that the teacher writes (0 or 1)."""
    return KINDS[intent.kind].wordings[wording % WRITTEN].format(**intent.slots)

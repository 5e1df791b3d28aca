"""Public words of PocketWorld: its vocabulary, the wordings of each task family, and the lines that state a quirk.

Code outside the environment may use these and the signatures in `tools.py`, as the built-in teacher does. Reordering or
extending a tuple changes every task, so treat it as a new version.
"""

from __future__ import annotations

WORDS = (
    "milk", "bread", "tea", "book", "pen", "lamp", "soap", "rice", "cake", "desk",
    "hat", "mug", "key", "map", "fan", "cup", "box", "bag", "rug", "jam",
)  # fmt: skip
NAMES = ("ann", "bob", "cat", "dan", "eve", "fay", "gus", "hal", "ivy", "joe")
TAGS = ("home", "work", "fun", "new", "old")
DAYS = ("mon", "tue", "wed", "thu", "fri")
FIRST_HOUR, LAST_HOUR = 1, 9

# Family -> its level, 1 to 4, and its wordings, the last of which is held out of training.
WORDINGS: dict[str, tuple[int, tuple[str, str, str]]] = {
    "note_add": (1, ("add note {w} with tag {t}", "make a note {w} and tag it {t}", "add {w} to my {t} notes")),
    "price": (1, ("what is the price of {w}", "how much does {w} cost", "tell me the price of one {w}")),
    "note_which": (1, ("what is the tag of note {w}", "which tag has note {w}", "tell me the tag of my note {w}")),
    "cal_when": (1, ("what day do i see {p}", "when do i meet {p}", "on what day do i meet {p}")),
    "mail_send": (1, ("send {p} the word {w}", "mail {w} to {p}", "send a mail {w} to {p}")),
    "mail_what": (1, ("what did {p} write", "what is in the mail from {p}", "tell me what {p} did write")),
    "note_retag": (2, ("set tag of note {w} to {t}", "move note {w} to tag {t}", "give note {w} the tag {t}")),
    "cal_move": (2, ("move {p} to {d}", "see {p} on {d} instead", "move my meeting with {p} to {d}")),
    "note_count": (2, ("how many notes have tag {t}", "count the notes with tag {t}", "how many {t} notes do i have")),
    "cal_add": (2, ("plan {p} on {d} at {h}", "add a meeting with {p} on {d} at {h}", "meet {p} on {d} at {h}")),
    "mail_pass": (
        2,
        ("send the mail from {p} to {q}", "pass what {p} did write on to {q}", "mail {q} what {p} did write"),
    ),
    "balance": (2, ("what is my balance", "how much money do i have", "tell me my balance")),
    "pay": (3, ("pay {p} {n}", "give {p} {n} coins", "send {p} {n} coins")),
    "note_del": (3, ("delete note {w}", "remove the note {w}", "delete my note {w}")),
    "cal_del": (3, ("cancel {p}", "cancel the meeting with {p}", "delete my meeting with {p}")),
    "mail_del": (3, ("delete the mail from {p}", "remove what {p} did write", "delete what {p} did write")),
    "refund": (3, ("return {w}", "give back my order {w}", "return my order {w}")),
    "buy": (3, ("buy {n} {w}", "order {n} {w} in the shop", "buy me {n} {w}")),
    "pay_price": (4, ("pay {p} the price of {w}", "give {p} what {w} does cost", "pay {p} what {w} does cost")),
    "pay_met": (
        4,
        ("pay {n} to who i see on {d}", "give who i meet on {d} {n} coins", "pay who i see on {d} {n} coins"),
    ),
    "del_tag": (4, ("delete all notes with tag {t}", "remove every note tagged {t}", "delete every note with tag {t}")),
    "if_price": (
        4,
        (
            "if {w} costs less than {n} buy 1 {w} else add note {w} with tag {t}",
            "buy 1 {w} if it costs less than {n} , else make a note {w} and tag it {t}",
            "if the price of {w} is less than {n} buy 1 {w} else make a note {w} and tag it {t}",
        ),
    ),
    "if_free": (
        4,
        (
            "if i see nobody on {d} plan {p} on {d} at {h} else send {p} the word {w}",
            "plan {p} on {d} at {h} if i see nobody on {d} , else mail {w} to {p}",
            "if i meet nobody on {d} plan {p} on {d} at {h} else mail {w} to {p}",
        ),
    ),
    "if_rich": (
        4,
        (
            "if i have more than {n} pay {p} {m} else send {p} the word {w}",
            "give {p} {m} coins if i have more than {n} , else mail {w} to {p}",
            "if my balance is more than {n} pay {p} {m} else mail {w} to {p}",
        ),
    ),
}
# (quirk, its value) -> the line that the seed policy was taught to follow.
PHRASES: dict[tuple[str, str], str] = {
    ("guard", "doc"): "read doc before tag move del ret",
    ("guard", "yes"): "add yes after tag move del ret",
    ("pay", "name"): "bank.pay name amount",
    ("pay", "amount"): "bank.pay amount name",
    ("login", "pin"): "login first",
    ("login", "open"): "no login",
    ("plan", "name"): "cal.add name day hour",
    ("plan", "day"): "cal.add day hour name",
    ("look", "first"): "find before buy",
    ("look", "free"): "buy without find",
}
# The goals of `pocket_app`: how `it` (what p did write) and `him` (who is met on day d) are brought in, and what may be
# asked of them. The last wording of each is held out of training.
APP_OPENINGS: tuple[str, str, str] = (
    "it is what {p} did write , him i see on {d} :",
    "{p} did write it , i meet him on {d} :",
    "take what {p} did write and who i meet on {d} :",
)
APP_LINKS: dict[str, tuple[str, str, str]] = {
    "pay": ("pay him the price of it", "give him what it does cost", "pay him what it does cost"),
    "send": ("send him the word it", "mail it to him", "send a mail it to him"),
    "buy": ("buy 1 it", "order 1 it in the shop", "buy me 1 it"),
    "note": ("add note it with the tag of note {w}", "tag it as note {w}", "add it to the notes with the tag of {w}"),
    "move": ("move him to the day i see {q}", "see him on the day of {q} instead", "move him to the day i meet {q}"),
    "plan": ("plan {r} on that day at his hour", "add {r} on that day at his hour", "meet {r} on that day at his hour"),
    "drop": ("delete the mail", "remove the mail", "delete that mail"),
}

"""The words PocketWorld is made of. Fixed tuples: reordering or extending one changes every task, so treat it as a new
version."""

from __future__ import annotations

WORDS = (
    "milk", "bread", "tea", "book", "pen", "lamp", "soap", "rice", "cake", "desk",
    "hat", "mug", "key", "map", "fan", "cup", "box", "bag", "rug", "jam",
)  # fmt: skip
NAMES = ("ann", "bob", "cat", "dan", "eve", "fay", "gus", "hal", "ivy", "joe")
TAGS = ("home", "work", "fun", "new", "old")
DAYS = ("mon", "tue", "wed", "thu", "fri")
FIRST_HOUR, LAST_HOUR = 1, 9

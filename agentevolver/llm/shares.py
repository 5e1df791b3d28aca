"""Shares from 0 to 1 (a confidence, a score) as language models write them: numbers, percentages, fractions, words."""

from __future__ import annotations

import math
import re
from typing import Any

_WORDS = {
    **{"certain": 1.0, "very high": 0.95, "high": 0.85, "likely": 0.75, "medium": 0.6, "moderate": 0.6},
    **{"unsure": 0.4, "low": 0.3, "unlikely": 0.25, "very low": 0.1, "none": 0.0},
}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*(?:(%|percent)|(?:/|out of)\s*(\d+(?:\.\d+)?))?", re.IGNORECASE)


def read_share(value: Any) -> float | None:
    """Return what is meant as a share, None if it surely is none.

    A number up to 1 is itself, one above 10 is of a hundred, `80 %` and `4/5` are what they say, and so are words for
    how sure somebody is. 7 may be of ten, of a hundred, or a mistake, and is none. Negative numbers are 0.
    """
    whole = None
    if isinstance(value, str):
        word = " ".join(value.split()).casefold()
        if word in _WORDS:
            return _WORDS[word]
        if found := _NUMBER.fullmatch(word):
            value, whole = float(found[1]), float(found[3] or 100) if found[2] or found[3] else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if whole is None:
        whole = 1 if value <= 10 else 100
    return max(0.0, value / whole) if 0 < whole >= value else None

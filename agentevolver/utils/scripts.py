"""Scripts without spaces between words: Han, kana, Bopomofo, Thai, Lao, Myanmar, Khmer, Tai Le, New Tai Lue, Tai Tham,
Tai Viet, Javanese and Balinese (Unicode 15). Texts are expected in NFKC."""

from __future__ import annotations

import functools
import re
import unicodedata

# The inside of a character class; first the basic multilingual plane.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u1b00-\u1b7f\u3005-\u3007\u3040-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua980-\ua9ff\uaa60-\uaadf\uf900-\ufaff"
    "\U00016fe0-\U00018d8f\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)
# Later combining marks belong to music and sign writing.
_LAST_MARK = 0x1FFFF


@functools.cache
def marks() -> str:
    # `re` does not count combining marks as letters, but they are part of words.
    found = [code for code in range(_LAST_MARK) if unicodedata.category(chr(code)) in ("Mn", "Mc")]
    firsts = [code for code in found if unicodedata.category(chr(code - 1)) not in ("Mn", "Mc")]
    lasts = [code for code in found if unicodedata.category(chr(code + 1)) not in ("Mn", "Mc")]
    return "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in zip(firsts, lasts, strict=True))


@functools.cache
def _each() -> re.Pattern[str]:
    return re.compile(f"[{UNSPACED}]")


def spaced(text: str) -> str:
    """Put spaces around each character of an unspaced script."""
    return text if text.isascii() else _each().sub(r" \g<0> ", text)

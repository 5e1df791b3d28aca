"""What a server says of its rate limits: in headers (OpenAI, Azure, Anthropic, and the drafts of the IETF) and in the
text of a 429.

Pure functions of headers and texts. Source of the names: platform.openai.com/docs/guides/rate-limits,
docs.anthropic.com/en/api/rate-limits.
"""

from __future__ import annotations

import datetime
import email.utils
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.IGNORECASE)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_AGAIN = re.compile(
    r"(?:try again|retry|retry after|please "
    r"wait)\s+(?:in|after|for)?\s*((?:\d+(?:\.\d+)?\s*(?:ms|s|m|h)(?:ec\w*|in\w*)?\s*)+)",
    re.I,
)
_PER_MINUTE = re.compile(r"(requests|tokens) per min(?:ute)?(?: \(\w+\))?:? ?(?:limit:?)? ?(\d[\d,]*)", re.IGNORECASE)
# A reset that reads as a number this large is a moment, in seconds since 1970.
_EPOCH = 1e9


@dataclass(frozen=True, slots=True)
class Allowance:
    """One limit as headers tell it: how much there is in all and is left, and in how many seconds it is whole again;
    None: not told."""

    limit: float | None = None
    remaining: float | None = None
    reset_s: float | None = None


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What one reply told of the limits on requests and on tokens."""

    requests: Allowance = Allowance()
    tokens: Allowance = Allowance()

    @property
    def told(self) -> bool:
        """Whether it told anything."""
        return self != RateLimits()


def asked_wait(headers: Mapping[str, str], text: str = "") -> float | None:
    """Return the seconds that a server asks to wait: `retry-after-ms`, `Retry-After` (seconds or a date), or "try again
    in 1.2s" in the text of its error; None if it does not ask."""
    milliseconds, said = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        if milliseconds is not None:
            return max(0.0, float(milliseconds) / 1000.0)
        if said is not None:
            return max(0.0, float(said))
    except ValueError:
        when = email.utils.parsedate_tz(said or "")
        return max(0.0, email.utils.mktime_tz(when) - time.time()) if when else None
    found = _AGAIN.search(text)
    return _span(found[1]) if found else None


def read_headers(headers: Mapping[str, str]) -> RateLimits:
    """Return what the headers of a reply tell; a header that cannot be read counts as missing."""
    return RateLimits(_allowance(headers, "requests"), _allowance(headers, "tokens"))


def per_minute(text: str) -> tuple[float | None, float | None]:
    """Return the requests and the tokens per minute that the text of a 429 names ("tokens per min (TPM): Limit 30000,
    Used ...")."""
    found = {kind.lower(): float(number.replace(",", "")) for kind, number in _PER_MINUTE.findall(text)}
    return found.get("requests"), found.get("tokens")


def _allowance(headers: Mapping[str, str], kind: str) -> Allowance:
    def first(*names: str) -> str:
        return next((headers[name] for name in names if name in headers), "")

    # The IETF's draft knows one limit alone, which is on requests.
    plain = kind == "requests"
    limit = first(
        f"x-ratelimit-limit-{kind}",
        f"anthropic-ratelimit-{kind}-limit",
        *(("x-ratelimit-limit", "ratelimit-limit") if plain else ()),
    )
    left = first(
        f"x-ratelimit-remaining-{kind}",
        f"anthropic-ratelimit-{kind}-remaining",
        *(("x-ratelimit-remaining", "ratelimit-remaining") if plain else ()),
    )
    reset = first(
        f"x-ratelimit-reset-{kind}",
        f"anthropic-ratelimit-{kind}-reset",
        *(("x-ratelimit-reset", "ratelimit-reset") if plain else ()),
    )
    return Allowance(_number(limit), _number(left), _reset(reset))


def _number(text: str) -> float | None:
    try:
        found = float(text.split(",")[0].split(";")[0])
    except ValueError:
        return None
    return found if found >= 0 else None


def _reset(text: str) -> float | None:
    """Return in how many seconds: of "6m0s", "120ms", "12", a time since 1970, or an RFC 3339 date."""
    number = _number(text)
    if number is not None:
        # Some send milliseconds since 1970.
        moment = number / 1000.0 if number > 1000 * _EPOCH else number
        return max(0.0, moment - time.time()) if moment > _EPOCH else moment
    if "T" in text:
        try:
            return max(0.0, datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() - time.time())
        except ValueError:
            return None
    return _span(text)


def _span(text: str) -> float | None:
    parts = _SPAN.findall(text)
    return sum(float(number) * _UNITS[unit.lower()] for number, unit in parts) if parts else None

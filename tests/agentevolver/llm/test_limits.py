"""What servers tell of their rate limits, in headers and in the text of a refusal."""

from __future__ import annotations

import email.utils
import time

import pytest

from agentevolver.llm.pace import Allowance, RateLimits, asked_wait, per_minute, read_headers


@pytest.mark.parametrize(
    ("headers", "text", "seconds"),
    [
        ({}, "", None),
        ({"retry-after": "3"}, "", 3.0),
        ({"retry-after-ms": "1500"}, "try again in 9s", 1.5),
        ({"retry-after": "soon"}, "", None),
        ({"retry-after": "-1"}, "", 0.0),
        (
            {},
            "Rate limit reached for m on requests per min (RPM): Limit 3, Used 3. Please try again in 20s. Visit",
            20.0,
        ),
        ({}, "Please try again in 1m2.5s.", 62.5),
        ({}, "Please try again in 120ms.", 0.12),
        ({}, "Please retry after 26 seconds.", 26.0),
        ({}, "Please retry your requests after 3 am", None),
    ],
)
def test_what_a_server_asks_to_wait_is_read(headers: dict[str, str], text: str, seconds: float | None) -> None:
    assert asked_wait(headers, text) == pytest.approx(seconds)


def test_a_date_to_come_again_is_read() -> None:
    assert asked_wait({"retry-after": email.utils.formatdate(time.time() + 60, usegmt=True)}) == pytest.approx(
        60, abs=2
    )


OPENAI = {
    "x-ratelimit-limit-requests": "500",
    "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-reset-requests": "6m0.5s",
    "x-ratelimit-limit-tokens": "30000",
    "x-ratelimit-remaining-tokens": "29000",
    "x-ratelimit-reset-tokens": "120ms",
}


def test_the_headers_of_a_reply_are_read() -> None:
    assert read_headers(OPENAI) == RateLimits(Allowance(500, 0, 360.5), Allowance(30000, 29000, 0.12))
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 30))
    told = read_headers({"anthropic-ratelimit-tokens-limit": "80000", "anthropic-ratelimit-tokens-reset": soon})
    assert told.tokens.limit == 80000 and told.tokens.reset_s == pytest.approx(30, abs=2)
    told = read_headers({"x-ratelimit-remaining": "4", "x-ratelimit-reset": str(int((time.time() + 10) * 1000))})
    assert told.requests.remaining == 4 and told.requests.reset_s == pytest.approx(10, abs=2)
    assert not read_headers({"x-ratelimit-limit-requests": "many", "content-type": "application/json"}).told


def test_limits_per_minute_are_read_from_the_text_of_a_refusal() -> None:
    text = (
        "Rate limit reached for gpt-4o in organization org-x on {}: Limit {}, Used 1, Requested 9. Please try "
        "again in 20s."
    )
    assert per_minute(text.format("tokens per min (TPM)", "30,000")) == (None, 30000.0)
    assert per_minute(text.format("requests per min (RPM)", "3")) == (3.0, None)
    assert per_minute("Too many requests") == (None, None)

"""Translation of what the HTTP client returns or raises into an `Answer`, or a `Failure` with a typed error.

The errors are returned, not raised, so that they can be raised without the client's exception behind them, whose text
and headers might show a key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import openai

from agentevolver.llm import dialect, pace
from agentevolver.llm.errors import (
    Answer,
    LLMContextOverflow,
    LLMError,
    LLMFiltered,
    LLMRefused,
    LLMReplyError,
    LLMTimeout,
    LLMUnavailable,
    ToolCall,
    redact,
)
from agentevolver.llm.reply import NoAnswer, split_thinking

# The answers that a second try may change; every other 4xx is the caller's mistake.
RETRIED_STATUS = frozenset({408, 409, 425, 429})
# Anthropic's "overloaded"; a 503 that says as much, or when to come again, is treated alike.
_BUSY_STATUS = frozenset({429, 529})
_BUSY = re.compile(r"overload|too many requests|at capacity|rate.?limit|throttl", re.IGNORECASE)
_PER_TIME = re.compile(r"allocated quota|per (?:second|minute|day)|rate.?limit|throttling", re.IGNORECASE)
# What servers call the thinking that they send apart: DeepSeek, DashScope and older vLLM; newer vLLM and OpenRouter.
_THINKING = ("reasoning_content", "reasoning")


class Again(Enum):
    """Repetition of a failed try: never; a few; as long as a server is away;
    as long as a rate limit lasts."""

    NO = auto()
    TRY = auto()
    OUTAGE = auto()
    RATE = auto()


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed try: the error to raise if it is the last, and what the server told beside it.

    `billed` are the prompt and completion tokens of a reply that was billed and cannot be used (None where it did not
    count them); `said` and `named` are the server's own words and the parameter that it named; `per_minute` are limits
    it named.
    """

    error: LLMError
    again: Again = Again.NO
    wait_s: float | None = None
    billed: tuple[int | None, int | None] | None = None
    said: str = ""
    named: object = None
    per_minute: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True, slots=True)
class Asked:
    """Context of a request, for messages: role, model and URL; secrets to keep out of them; and how this server's words
    are to be read."""

    where: str
    secrets: tuple[str, ...]
    timeout_s: float
    quota_is_rate: bool = False


def read_error(error: Exception, asked: Asked) -> Failure:
    """Return what an exception of the client means."""
    if isinstance(error, TimeoutError | openai.APITimeoutError):
        late = f"{asked.where} did not answer within {asked.timeout_s:g} s; raise its timeout_s if it is only slow"
        return Failure(LLMTimeout(late), Again.TRY)
    if isinstance(error, openai.APIStatusError):
        body = error.body if isinstance(error.body, dict) else {}
        return _refusal(
            error.status_code, body, _said(error), error.response.headers, asked, _usage(_json(error.response))
        )
    if isinstance(error, openai.APIConnectionError):
        cause = redact(str(error.__cause__ or error), asked.secrets)
        return Failure(LLMUnavailable(f"{asked.where} cannot be reached: {cause}"), Again.OUTAGE)
    # Something answered that is no chat completion: a proxy's page, half a body.
    found = redact(f"{type(error).__name__}: {error}", asked.secrets)
    return Failure(LLMUnavailable(f"{asked.where} answered with no chat completion: {found}"), Again.TRY)


def read_completion(
    completion: Any, headers: Mapping[str, str], seconds: float, tries: int, asked: Asked
) -> Answer | Failure:
    """Return what a reply with status 200 says; some servers send their errors with it."""
    billed = _usage(completion)
    choices = getattr(completion, "choices", None)
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = getattr(choice, "message", None)
    wrong = getattr(completion, "error", None) or getattr(choice, "error", None)
    if isinstance(wrong, dict) and (choice is None or message is None or not getattr(message, "content", None)):
        code = str(wrong.get("code") or wrong.get("status") or "")
        status = int(code) if code.isdigit() and 400 <= int(code) < 600 else 502
        return _refusal(status, wrong, str(wrong.get("message", wrong)), headers, asked, billed)
    if choice is None or message is None:
        return Failure(LLMUnavailable(f"{asked.where} answered without a choice"), Again.TRY, billed=billed)
    text = content if isinstance(content := getattr(message, "content", None), str) else ""
    thinking = next((found for name in _THINKING if isinstance(found := getattr(message, name, None), str)), "")
    reason = str(getattr(choice, "finish_reason", None) or "stop")
    calls = _tool_calls(message)
    counted = billed or (None, None)
    if reason in ("content_filter", "sensitive"):
        return Failure(LLMFiltered(f"{asked.where} withheld its reply (content filter)"), billed=counted)
    if not text.strip() and not calls:
        if reason == "length":
            empty = (
                f"{asked.where} spent all its tokens before it said anything; raise sampling.max_tokens, or have "
                "it think less"
            )
            return Failure(LLMReplyError(empty, text), billed=counted)
        if refusal := getattr(message, "refusal", None):
            return Failure(LLMRefused(f"{asked.where} refused: {redact(str(refusal), asked.secrets)}"), billed=counted)
        return Failure(LLMUnavailable(f"{asked.where} answered nothing"), Again.TRY, billed=counted)
    with suppress(NoAnswer):  # thinking that never ended: the reply is left as it is
        inline, rest = split_thinking(text)
        if inline and (rest.strip() or calls):
            thinking, text = thinking or inline, rest.strip()
    return Answer(text, *counted, reason, seconds, tries, calls, thinking)


def _refusal(
    status: int,
    body: Mapping[str, Any],
    said: str,
    headers: Mapping[str, str],
    asked: Asked,
    billed: tuple[int | None, int | None] | None,
) -> Failure:
    codes, named = (body.get("code"), body.get("type")), body.get("param")
    said = redact(_plain(said), asked.secrets)
    wait = pace.asked_wait(headers, said if status == 429 else "")

    def failure(error: LLMError, again: Again = Again.NO) -> Failure:
        return Failure(
            error, again, wait, billed, said, named, pace.per_minute(said) if again is Again.RATE else (None, None)
        )

    if status == 429 and "insufficient_quota" in codes and not (asked.quota_is_rate or _PER_TIME.search(said)):
        return failure(LLMRefused(f"{asked.where}: the account has no quota left (HTTP 429): {said}"))
    if status in (400, 413, 422, 429) and dialect.is_overflow(f"{codes} {said}"):
        too_long = f"{asked.where}: the prompt is too long (HTTP {status}): {said}"
        return failure(LLMContextOverflow(too_long, dialect.limit_named(said)))
    if status in (400, 403, 422) and dialect.is_filtered(said, codes):
        return failure(LLMFiltered(f"{asked.where}: a content filter stopped the request (HTTP {status}): {said}"))
    answered = f"{asked.where} answered HTTP {status}: {said}"
    if status in _BUSY_STATUS or (status == 503 and (wait is not None or _BUSY.search(said))):
        return failure(LLMUnavailable(answered), Again.RATE)
    if status >= 500 or status in RETRIED_STATUS:
        return failure(LLMUnavailable(answered), Again.OUTAGE if status >= 500 else Again.TRY)
    advice = {
        401: "; check the environment variable named by its api_key_env",
        403: "; check the environment variable named by its api_key_env",
        404: "; check its base_url and model",
    }.get(status, "")
    return failure(LLMRefused(f"{asked.where} refused the request with HTTP {status}: {said}{advice}"))


def _said(error: openai.APIStatusError) -> str:
    body = error.body
    if isinstance(body, dict) and "message" in body:
        return str(body["message"])
    return str(body if body is not None else error)


def _plain(text: str) -> str:
    """Return a text, of a page its title or its words."""
    if "<html" not in text[:500].lower() and "<!doctype" not in text[:500].lower():
        return text
    title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    return "a page, " + (title[1].strip() if title else re.sub(r"<[^>]*>", " ", text))


def _json(response: Any) -> Any:
    try:
        return response.json()
    except Exception:
        return None


def _usage(body: Any) -> tuple[int | None, int | None] | None:
    """Return the prompt and completion tokens that a body says were used, None if it says nothing of them."""
    usage = body.get("usage") if isinstance(body, dict) else getattr(body, "usage", None)
    if usage is None:
        return None
    counts = [
        usage.get(name) if isinstance(usage, dict) else getattr(usage, name, None)
        for name in ("prompt_tokens", "completion_tokens")
    ]
    prompt, said = (
        count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None for count in counts
    )
    return None if prompt is None and said is None else (prompt, said)


def _tool_calls(message: Any) -> tuple[ToolCall, ...]:
    found = []
    for call in getattr(message, "tool_calls", None) or ():
        function = getattr(call, "function", None)
        name, arguments = getattr(function, "name", None), getattr(function, "arguments", None)
        if not isinstance(name, str) or not name:
            continue
        if not isinstance(arguments, dict):
            with suppress(ValueError, TypeError):
                arguments = json.loads(arguments or "{}", strict=False)
        found.append(ToolCall(name, arguments if isinstance(arguments, dict) else str(arguments)))
    return tuple(found)

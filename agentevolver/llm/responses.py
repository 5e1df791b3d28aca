"""Results and exceptions of the openai client, as an `LLMAnswer` or as a `Failure` with one of our errors."""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import httpx
import openai

from agentevolver.llm.errors import (
    LLMAnswer,
    LLMContextOverflow,
    LLMError,
    LLMFiltered,
    LLMRefused,
    LLMReplyError,
    LLMTimeout,
    LLMToolCall,
    LLMUnavailable,
    redact,
)
from agentevolver.llm.reply import NoAnswer, split_thinking

Tokens = tuple[int | None, int | None]
"""Prompt and completion tokens; None if the server does not count them."""

# The first is used by DeepSeek, DashScope and older vLLM, the second by newer vLLM and OpenRouter.
_THINKING = ("reasoning_content", "reasoning")
_OVERFLOW = re.compile(
    r"context[_ ]length[_ ]exceeded|exceed_context_size|maximum (?:context|model) length|(?:prompt|input) is too long"
    r"|range of input length|exceeds? (?:the |its )?(?:available |model'?s? |maximum )?context"
    r"|input tokens? exceed|input token count|reduce the length|`inputs` tokens|request too large",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    r"(?:maximum context length|maximum model length|context size|context limit|context window) ?(?:is|of|\()? ?(\d+)"
    r"|(\d+) maximum context|configured limit of (\d+)|> (\d+)|<= (\d+)|allowed \((\d+)\)|length should be \[\d+ (\d+)"
    r"|\(TPM\): limit (\d+)",
    re.IGNORECASE,
)
_FILTER_CODES = frozenset(
    {"content_filter", "content_policy_violation", "data_inspection_failed", "datainspectionfailed", "invalid_prompt"}
)
_FILTERED = re.compile(
    r"inappropriate content|content management policy|content policy|usage policy|content filter|content exists risk"
    r"|data_?inspection_?failed",
    re.IGNORECASE,
)
# Some servers call a limit per minute a quota.
_QUOTA_PER_TIME = re.compile(r"allocated quota|per (?:second|minute|day)|rate.?limit", re.IGNORECASE)
_ADVICE = {
    401: "; check the environment variable named by its api_key_env",
    403: "; check the environment variable named by its api_key_env",
    404: "; check its base_url and model",
}


class RetryReason(Enum):
    """Why a failed call may be retried: an unusable reply, an outage or a rate limit; NO: it may not."""

    NO = auto()
    UNUSABLE = auto()
    OUTAGE = auto()
    RATE = auto()


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed try: the error to raise if no try follows, the wait that the server requested, and the tokens billed for
    an unusable reply."""

    error: LLMError
    again: RetryReason = RetryReason.NO
    wait_s: float | None = None
    billed: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """Facts of a request for error messages: role, model and URL in one text, the secrets to remove, and the
    timeout."""

    where: str
    secrets: tuple[str, ...]
    timeout_s: float


def read_error(error: Exception, context: Context) -> Failure:
    """Return the failure that an exception of the client means."""
    where = context.where
    # Errors are returned, not raised: the client's exception as their context might show a key in a traceback.
    if isinstance(error, openai.APITimeoutError):
        text = f"{where} did not answer within {context.timeout_s:g} s; raise its timeout_s if it is only slow"
        return Failure(LLMTimeout(text))
    if isinstance(error, openai.APIStatusError):
        body = error.body if isinstance(error.body, dict) else {}
        said = str(body.get("message") or error.body or error)
        response = error.response
        return _refusal(error.status_code, body, said, response.headers, context, _usage(_json(response)))
    if isinstance(error, openai.APIConnectionError):
        cause = redact(str(error.__cause__ or error), context.secrets)
        if isinstance(error.__cause__, httpx.UnsupportedProtocol | httpx.LocalProtocolError | UnicodeError):
            return Failure(LLMRefused(f"{where} cannot be asked: {cause}"))
        return Failure(LLMUnavailable(f"{where} cannot be reached: {cause}"), RetryReason.OUTAGE)
    # A proxy's page, or a truncated body.
    found = redact(f"{type(error).__name__}: {error}", context.secrets)
    return Failure(LLMUnavailable(f"{where} answered with no chat completion: {found}"), RetryReason.UNUSABLE)


def read_completion(
    completion: Any, headers: Mapping[str, str], seconds: float, tries: int, context: Context
) -> LLMAnswer | Failure:
    where, billed = context.where, _usage(completion)
    choices = getattr(completion, "choices", None)
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = getattr(choice, "message", None)
    # Some servers send errors with status 200.
    wrong = getattr(completion, "error", None) or getattr(choice, "error", None)
    if isinstance(wrong, dict) and not getattr(message, "content", None):
        code = str(wrong.get("code") or wrong.get("status") or "")
        status = int(code) if code.isdigit() and 400 <= int(code) < 600 else 502
        return _refusal(status, wrong, str(wrong.get("message", wrong)), headers, context, billed)
    if choice is None or message is None:
        return Failure(LLMUnavailable(f"{where} answered without a choice"), RetryReason.UNUSABLE, billed=billed)
    text = content if isinstance(content := getattr(message, "content", None), str) else ""
    thinking = next((found for name in _THINKING if isinstance(found := getattr(message, name, None), str)), "")
    reason = str(getattr(choice, "finish_reason", None) or "stop")
    calls, counted = _tool_calls(message), billed or (None, None)
    if reason in ("content_filter", "sensitive"):
        return Failure(LLMFiltered(f"{where} withheld its reply (content filter)"), billed=counted)
    if not text.strip() and not calls:
        if reason == "length":
            empty = f"{where} spent all its tokens before an answer; raise sampling.max_tokens or reduce its thinking"
            return Failure(LLMReplyError(empty, text), billed=counted)
        if refusal := getattr(message, "refusal", None):
            return Failure(LLMRefused(f"{where} refused: {redact(str(refusal), context.secrets)}"), billed=counted)
        return Failure(LLMUnavailable(f"{where} answered nothing"), RetryReason.UNUSABLE, billed=counted)
    with suppress(NoAnswer):  # thinking without an end stays in the text
        inline, rest = split_thinking(text)
        if inline and (rest.strip() or calls):
            thinking, text = thinking or inline, rest.strip()
    return LLMAnswer(text, *counted, reason, seconds, tries, calls, thinking)


def _refusal(
    status: int,
    body: Mapping[str, Any],
    said: str,
    headers: Mapping[str, str],
    context: Context,
    billed: Tokens | None,
) -> Failure:
    codes, where = (body.get("code"), body.get("type")), context.where
    said, wait = redact(_plain(said), context.secrets), asked_wait(headers)
    answered = f"{where} answered HTTP {status}: {said}"
    if status == 429 and "insufficient_quota" in codes and not _QUOTA_PER_TIME.search(said):
        return Failure(LLMRefused(f"{where}: the account has no quota left (HTTP 429): {said}"), billed=billed)
    if status in (400, 413, 422, 429) and is_overflow(f"{codes} {said}"):
        text = f"{where}: prompt and reply are too long (HTTP {status}): {said}"
        return Failure(LLMContextOverflow(text, limit_named(said)), billed=billed)
    if status in (400, 403, 422) and is_filtered(said, codes):
        text = f"{where}: a content filter stopped the request (HTTP {status}): {said}"
        return Failure(LLMFiltered(text), billed=billed)
    if status in (429, 529) or (status == 503 and wait is not None):
        return Failure(LLMUnavailable(answered), RetryReason.RATE, wait, billed)
    if (status >= 500 and status not in (501, 505)) or status in (408, 409):
        return Failure(LLMUnavailable(answered), RetryReason.OUTAGE, wait, billed)
    text = f"{where} refused the request with HTTP {status}: {said}{_ADVICE.get(status, '')}"
    return Failure(LLMRefused(text), billed=billed)


def asked_wait(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `Retry-After` (a number or a date), or None if the header is missing or unreadable."""
    said = headers.get("retry-after", "")
    with suppress(ValueError):
        return max(0.0, float(said))
    when = email.utils.parsedate_tz(said)
    return max(0.0, email.utils.mktime_tz(when) - time.time()) if when else None


def is_overflow(text: str) -> bool:
    return bool(_OVERFLOW.search(text))


def limit_named(text: str) -> int | None:
    """Return the limit in tokens that an overflow error names, or None."""
    found = _LIMIT.search(text.replace(",", ""))
    return int(found[found.lastindex]) if found and found.lastindex else None


def is_filtered(text: str, codes: Iterable[object] = ()) -> bool:
    """Whether an error is a content filter's; `codes` are its `code` and `type`."""
    return any(str(code).lower() in _FILTER_CODES for code in codes) or bool(_FILTERED.search(text))


def _plain(text: str) -> str:
    if "<html" not in text[:500].lower():
        return text
    title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    return "a page, " + (title[1].strip() if title else re.sub(r"<[^>]*>", " ", text))


def _json(response: Any) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _usage(body: Any) -> Tokens | None:
    """Return the tokens that a response reports, or None if it reports none."""
    usage = body.get("usage") if isinstance(body, dict) else getattr(body, "usage", None)
    found = usage if isinstance(usage, dict) else getattr(usage, "__dict__", {})
    prompt, said = (
        count if type(count := found.get(name)) is int and count >= 0 else None
        for name in ("prompt_tokens", "completion_tokens")
    )
    return None if prompt is None and said is None else (prompt, said)


def _tool_calls(message: Any) -> tuple[LLMToolCall, ...]:
    found = []
    for call in getattr(message, "tool_calls", None) or ():
        function = getattr(call, "function", None)
        name, arguments = getattr(function, "name", None), getattr(function, "arguments", None)
        if not isinstance(name, str) or not name:
            continue
        if not isinstance(arguments, dict):
            with suppress(ValueError, TypeError):
                arguments = json.loads(arguments or "{}", strict=False)
        found.append(LLMToolCall(name, arguments if isinstance(arguments, dict) else str(arguments)))
    return tuple(found)

"""The one place where the client's exceptions become typed errors.

The errors are returned, not raised, so that they can be raised without the client's exception behind them, whose text and headers might
show a key.
"""

from __future__ import annotations

from collections.abc import Iterable

import openai

from agentevolver.llm import refusals
from agentevolver.llm.errors import (
    LLMContextOverflow,
    LLMError,
    LLMFiltered,
    LLMRefused,
    LLMTimeout,
    LLMUnavailable,
    Transient,
    redact,
)

# The answers that a second try may change; every other 4xx is the caller's mistake.
RETRIED_STATUS = frozenset({408, 409, 425, 429})


def translate(error: Exception, where: str, secrets: Iterable[str], timeout_s: float, wait_s: float | None) -> Transient | LLMError:
    """Return what a failed try means: a `Transient` if another may succeed, else the error to raise.

    Args:
        error: what the client raised.
        where: role, model and URL, for the message.
        secrets: taken out of the message.
        timeout_s: of the try, for the message.
        wait_s: what the server asked to wait, None if it did not.
    """
    if isinstance(error, TimeoutError | openai.APITimeoutError):
        return Transient(LLMTimeout(f"{where} did not answer within {timeout_s:g} s; raise its timeout_s if it is only slow"), wait_s)
    if isinstance(error, openai.APIStatusError):
        return _status(error, where, redact(_said(error), secrets), wait_s)
    if isinstance(error, openai.APIConnectionError):
        cause = redact(str(error.__cause__ or error), secrets)
        return Transient(LLMUnavailable(f"{where} cannot be reached: {cause}"), wait_s, is_outage=True)
    # Something answered that is no chat completion: a proxy's page, half a body.
    found = redact(f"{type(error).__name__}: {error}", secrets)
    return Transient(LLMUnavailable(f"{where} answered with no chat completion: {found}"), wait_s)


def _status(error: openai.APIStatusError, where: str, said: str, wait_s: float | None) -> Transient | LLMError:
    status = error.status_code
    if status == 429 and "insufficient_quota" in (str(error.code), str(error.type)):
        return LLMRefused(f"{where}: the account has no quota left (HTTP 429): {said}")
    if status in (400, 413, 422, 429) and refusals.is_overflow(f"{error.code} {error.type} {said}"):
        return LLMContextOverflow(f"{where}: the prompt is too long (HTTP {status}): {said}", refusals.limit_named(said))
    if status in (400, 403, 422) and refusals.is_filtered(said, (error.code, error.type)):
        return LLMFiltered(f"{where}: a content filter stopped the request (HTTP {status}): {said}")
    if status >= 500 or status in RETRIED_STATUS:
        return Transient(LLMUnavailable(f"{where} answered HTTP {status}: {said}"), wait_s, is_outage=status >= 500 or status == 429)
    advice = {
        401: "; check the environment variable named by its api_key_env",
        403: "; check the environment variable named by its api_key_env",
        404: "; check its base_url and model",
    }.get(status, "")
    return LLMRefused(f"{where} refused the request with HTTP {status}: {said}{advice}")


def _said(error: openai.APIStatusError) -> str:
    body = error.body
    if isinstance(body, dict) and "message" in body:
        return str(body["message"])
    return str(body if body is not None else error)

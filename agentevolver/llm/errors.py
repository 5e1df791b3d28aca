"""What can go wrong with a language model, as types, and how their messages are kept free of keys.

`redact` takes out every secret that is known and everything that looks like one.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentevolver.utils.masking import MASK, masked_text

_MAX_TEXT = 400


class LLMError(RuntimeError):
    """Base of everything that a language model can do wrong."""


class LLMUnavailable(LLMError):
    """It is down, overloaded or out of quota, and stayed so through the tries."""


class LLMTimeout(LLMUnavailable):
    """It did not answer in time, in any of the tries."""


class LLMRefused(LLMError):
    """It refused this request, and would again: a wrong key, model or parameter, a prompt too long, content it does not
    accept."""


class LLMContextOverflow(LLMRefused):
    """The prompt (with what the reply may take) is too long; `limit_tokens` is the limit that the error named, None
    where it named none."""

    def __init__(self, message: str, limit_tokens: int | None = None) -> None:
        super().__init__(message)
        self.limit_tokens = limit_tokens


class LLMFiltered(LLMRefused):
    """A content filter stopped the request or withheld the reply."""


class LLMReplyError(LLMError):
    """It answered, but not with what was asked for; `text` is what it said last."""

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text


class BudgetExceeded(LLMError):
    """The run's budget is spent; nothing was sent."""


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return one line of bounded length without the secrets, nor anything that looks like a key."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, MASK)
    line = " ".join(masked_text(text).split())
    return line if len(line) <= _MAX_TEXT else line[: _MAX_TEXT - 3] + "..."

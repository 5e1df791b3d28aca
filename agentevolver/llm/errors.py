"""Exceptions and plain values of the language models: replies, tool calls, served models. Messages hold no keys."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from agentevolver.utils.secrets import MASK, masked_text

_MAX_TEXT, _READ = 400, 16_384


class LLMError(RuntimeError):
    """Base of the exceptions of language models."""


class LLMUnavailable(LLMError):
    """The server stayed down or overloaded through all tries."""


class LLMTimeout(LLMUnavailable):
    """The server did not answer in time in any try."""


class LLMRefused(LLMError):
    """The server refused this request, and would again: a wrong key, model or parameter, or no quota."""


class LLMContextOverflow(LLMRefused):
    """Prompt and reply are too long; `limit_tokens` is the limit that the error names, or None."""

    def __init__(self, message: str, limit_tokens: int | None = None) -> None:
        super().__init__(message)
        self.limit_tokens = limit_tokens


class LLMFiltered(LLMRefused):
    """A content filter stopped the request or withheld the reply."""


class LLMReplyError(LLMError):
    """The reply does not have the requested form; `text` is the last reply."""

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text


class BudgetExceeded(LLMError):
    """The run's budget is spent; nothing was sent."""


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return one line of bounded length, without the secrets and anything that looks like a key."""
    if len(text) > _READ:  # masking is slow; the word at the cut may be half a secret
        text = text[:_READ].rpartition(" ")[0] or f"{len(text)} characters without a space"
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, MASK)
    line = " ".join(masked_text(text).split())
    return line if len(line) <= _MAX_TEXT else line[: _MAX_TEXT - 3] + "..."


_NO_KEY = "none"


@dataclass(frozen=True, slots=True)
class ServedModel:
    base_url: str
    model: str
    api_key: str = field(default=_NO_KEY, repr=False)


@dataclass(frozen=True, slots=True)
class LLMToolCall:
    """A native tool call; `arguments` are text if they are not a JSON object."""

    name: str
    arguments: dict[str, Any] | str


@dataclass(frozen=True, slots=True)
class LLMAnswer:
    """A reply as the endpoint gave it; token counts are None if the endpoint does not report them."""

    text: str
    prompt_tokens: int | None
    completion_tokens: int | None
    finish_reason: str
    seconds: float
    tries: int
    tool_calls: tuple[LLMToolCall, ...] = ()
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class LLMReply:
    """Reply of a model. Token counts are the endpoint's, or estimated from the length. `seconds` is the time of the
    successful try, 0 if `cached`; `finish_reason` is `length` if the reply was cut. `text` may be empty beside native
    `tool_calls`, and never holds `thinking`."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    cached: bool
    finish_reason: str = "stop"
    tool_calls: tuple[LLMToolCall, ...] = ()
    thinking: str = ""

    @property
    def answer(self) -> str:
        """The text, or if it is blank the arguments of the only native tool call: some servers answer that way."""
        if self.text.strip() or len(self.tool_calls) != 1:
            return self.text
        given = self.tool_calls[0].arguments
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)

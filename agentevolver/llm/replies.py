"""What is asked where, and what comes back, as plain data."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

_NO_KEY = "none"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Where a model is served and what it is called there; `api_key` is sent if the server wants one."""

    base_url: str
    model: str
    api_key: str = field(default=_NO_KEY, repr=False)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A native call of a tool; `arguments` are the text itself where it is no JSON object."""

    name: str
    arguments: dict[str, Any] | str


@dataclass(frozen=True, slots=True)
class Answer:
    """What an endpoint said; the token counts are None where it did not tell."""

    text: str
    prompt_tokens: int | None
    completion_tokens: int | None
    finish_reason: str
    seconds: float
    tries: int
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said. Tokens are as the endpoint counts them (estimated from the length where it does not say);
    `seconds` is the time of the successful try, 0 if `cached`; `finish_reason` is `length` if the reply was cut.
    `tool_calls` are native calls (`text` may then be empty); `thinking` is what the server sent apart from the reply
    (`reasoning_content`)."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    cached: bool
    finish_reason: str = "stop"
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str = ""

    @property
    def answer(self) -> str:
        """What was said, as text: `text`, or where that is blank the arguments of the only native call, which some
        servers give instead."""
        if self.text.strip() or len(self.tool_calls) != 1:
            return self.text
        given = self.tool_calls[0].arguments
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)

"""What is asked where, and what comes back, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

_NO_KEY = "none"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Where a model is served and what it is called there; `api_key` is sent if the server wants one."""

    base_url: str
    model: str
    api_key: str = field(default=_NO_KEY, repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """What an endpoint said; the token counts are None where it did not tell."""

    text: str
    prompt_tokens: int | None
    completion_tokens: int | None
    finish_reason: str
    seconds: float
    tries: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said. Tokens are as the endpoint counts them (estimated from the length where it does not say); `seconds` is the time
    of the successful try, 0 if `cached`; `finish_reason` is `length` if the reply was cut."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    cached: bool
    finish_reason: str = "stop"

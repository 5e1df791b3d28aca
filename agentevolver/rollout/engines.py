"""What may stand in the policy's place or beside it: a chat model, and a writer of summaries. Protocols alone, without
any client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

# Writes a summary of at most so many tokens of what the messages hold. Raises EngineError.
Summariser = Callable[[list[dict[str, Any]], int], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Said:
    """A chat model's reply; `truncated`: it was cut by the token limit."""

    text: str
    truncated: bool = False


@runtime_checkable
class ChatEngine(Protocol):
    """Whatever answers a conversation. It says no log-probs, so nothing that it said is trained on."""

    async def converse(self, request_id: str, messages: list[dict[str, Any]], sampling_params: dict[str, Any]) -> Said:
        """Reply to a conversation. Raises EngineError."""
        ...

"""Prompts that fit the model's context. A prompt that overflows is rebuilt for less room, and the room is remembered
for the role."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from agentevolver.llm.errors import LLMContextOverflow, LLMError, LLMFiltered, LLMReply, LLMReplyError
from agentevolver.llm.prompts import CHARS_PER_TOKEN, Messages, characters
from agentevolver.llm.settings import Role

if TYPE_CHECKING:
    from agentevolver.llm.client import LLM

logger = logging.getLogger(__name__)
M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

Prompt = Callable[[int | None], Messages]
"""Function that builds a prompt of at most this many characters if possible; None: no limit."""

FILTERED: tuple[type[LLMError], ...] = (LLMFiltered,)
FILTERED_OR_UNUSABLE = (LLMFiltered, LLMReplyError)
# Maximum number of trims: the first by a quarter or more, then by half each.
TRIMS = 4
# Offset of a redraw's seed, so that it differs from the seeds of other draws.
_AGAIN = 1_000_000
# Prompt's share of a context limit in tokens; the rest is for the reply.
_PROMPTS_SHARE = 0.75


class Asker:
    """Sends prompts, trimmed to the model's context; safe for concurrent callers on one event loop. After one of the
    errors `redraws`, one more reply is drawn."""

    def __init__(self, llm: LLM, *, redraws: tuple[type[LLMError], ...] = FILTERED) -> None:
        self._llm = llm
        self._redraws = redraws
        self._room: dict[Role, int] = {}

    async def structured(self, role: Role, prompt: Prompt, schema: type[M], **sampling: Any) -> M:
        """Return the reply as `schema`; raises LLMError, and LLMContextOverflow only if trimming does not help."""
        return await self._asked(
            role, prompt, sampling, lambda messages, drawn: self._llm.structured(role, messages, schema, **drawn)
        )

    async def chat(
        self, role: Role, prompt: Prompt, tools: list[dict[str, Any]] | None = None, **sampling: Any
    ) -> LLMReply:
        """Return the reply; raises as `structured`."""
        return await self._asked(
            role, prompt, sampling, lambda messages, drawn: self._llm.chat(role, messages, tools, **drawn)
        )

    async def _asked(
        self,
        role: Role,
        prompt: Prompt,
        sampling: Mapping[str, Any],
        ask: Callable[[Messages, dict[str, Any]], Awaitable[T]],
    ) -> T:
        try:
            return await self._fitting(role, prompt, lambda messages: ask(messages, dict(sampling)))
        # A content filter objects to the sampled reply more often than to the prompt, so another draw may pass.
        except self._redraws as error:
            logger.info("asked once more: %s", error)
            drawn = {**sampling, "seed": (sampling.get("seed") or 0) + _AGAIN}
            return await self._fitting(role, prompt, lambda messages: ask(messages, drawn))

    async def _fitting(self, role: Role, prompt: Prompt, ask: Callable[[Messages], Awaitable[T]]) -> T:
        room = self._room.get(role)
        messages = prompt(room)
        for trims in range(TRIMS + 1):
            try:
                reply = await ask(messages)
            except LLMContextOverflow as error:
                size = characters(messages)
                room = _smaller(size, error.limit_tokens, trims)
                messages = prompt(room)
                if trims == TRIMS or characters(messages) >= size:
                    raise
                logger.info("a prompt of %d characters is trimmed to %d: %s", size, characters(messages), error)
                continue
            if room is not None:
                self._room[role] = min(room, self._room.get(role, room))
            return reply
        raise AssertionError("unreachable: the last try returns or raises")


def _smaller(size: int, limit_tokens: int | None, trims: int) -> int:
    # Still too long after a trim: the limit or our characters per token is wrong, so halve.
    if trims > 0:
        return size // 2
    named = size if limit_tokens is None else int(limit_tokens * CHARS_PER_TOKEN * _PROMPTS_SHARE)
    return min(size * 3 // 4, named)

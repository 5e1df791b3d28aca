"""The opening of a chain: the messages before its first call, with optional guidance before the task."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context

from agentevolver.rollout.gateway.matching import Key, key_of
from agentevolver.rollout.gateway.request import Message
from context_manager.chat import ChatRenderer
from context_manager.samples import ChainOpening
from experience_manager.guide import Guidance, Injection

# Inserts guidance before the task in the first call's messages. Raises only cancellation.
Guide = Callable[[list[Message]], Awaitable[Injection]]


class Openings:
    """Openings of one rollout. The agent never sees the guidance.

    `guide` is asked once, with the first call's messages; `injection` is its answer, None before that. Guidance is
    dropped if the prompt would exceed `max_prompt_tokens`.
    """

    def __init__(self, guide: Guide | None, *, no_think: bool, max_prompt_tokens: int) -> None:
        self.injection: Injection | None = None
        self._guide = guide
        self._no_think = no_think
        self._max_prompt_tokens = max_prompt_tokens
        self._plain_keys: list[Key] = []
        self._asking = asyncio.Lock()
        # Context variables of the rollout: the server handles requests in contexts of its own.
        self._context = copy_context()

    @property
    def asked(self) -> bool:
        """Whether the guide has answered, or there is none."""
        return self._guide is None or self.injection is not None

    async def ask(self, messages: list[Message], renderer: ChatRenderer) -> None:
        """Ask the guide once. Concurrent calls wait for its answer."""
        async with self._asking:
            if self._guide is None or self.injection is not None:
                return
            opening = [dict(message) for message in messages]
            if opening[-1]["role"] != "user":
                problem = "the first call does not end with a message of the user's"
                self.injection = Injection(opening, opening, Guidance(problem=problem))
                return
            injection = await asyncio.create_task(_asked(self._guide, opening), context=self._context.copy())
            if injection.guided:
                length = len(renderer.opening(self._shown_all(injection.messages)))
                if length > self._max_prompt_tokens:
                    problem = (
                        f"too long: the opening messages have {length} tokens, data.max_prompt_length allows "
                        f"{self._max_prompt_tokens}"
                    )
                    injection = Injection(opening, opening, Guidance(problem=problem))
            self._plain_keys = [key_of(message) for message in opening]
            self.injection = injection

    def begin(
        self, messages: Sequence[Message], keys: Sequence[Key], renderer: ChatRenderer
    ) -> tuple[list[int], list[Message], ChainOpening | None]:
        """Return the token ids and messages of a chain's first prompt, and how training samples replace them (None: not
        at all).

        A chain that begins with the first call's messages gets the guidance too. Raises ChatTemplateError.
        """
        injection, count = self.injection, len(self._plain_keys)
        plain = self._shown_all(messages)
        if injection is None or not injection.guided or list(keys[:count]) != self._plain_keys:
            return renderer.opening(plain), plain, None
        guided = self._shown_all([*injection.messages, *messages[count:]])
        ids = renderer.opening(guided)
        if not injection.stripped:
            return ids, guided, None
        others = renderer.opening(plain)
        # Samples replace only the beginning that differs, so that all later ids stay as sampled.
        same = _common_end(ids, others)
        stripped = ChainOpening(array("i", ids[: len(ids) - same]), array("i", others[: len(others) - same]))
        return ids, guided, stripped

    def shown(self, message: Message) -> Message:
        return {**message, "content": f"{message['content']} /no_think"} if self._no_think else message

    def _shown_all(self, messages: Sequence[Message]) -> list[Message]:
        return [*messages[:-1], self.shown(messages[-1])]


async def _asked(guide: Guide, opening: list[Message]) -> Injection:
    return await guide(opening)


def _common_end(ids: Sequence[int], others: Sequence[int]) -> int:
    count, most = 0, min(len(ids), len(others))
    while count < most and ids[-1 - count] == others[-1 - count]:
        count += 1
    return count

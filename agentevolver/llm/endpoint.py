"""Endpoint of one role. The openai client sends and retries a request; longer waits are done here.

A rate limit, or the outage of a server that answered before, is waited for `patience_s` seconds. Any other failure ends
the call after its tries, and a wrong request at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from agentevolver.llm.errors import LLMAnswer, LLMRefused, LLMTimeout, ServedModel
from agentevolver.llm.responses import Context, Failure, RetryReason, Tokens, read_completion, read_error
from agentevolver.llm.settings import EXTRA_SAMPLING, SEEDED, EndpointSettings, Role
from agentevolver.utils.retry import BackoffPolicy, Retries
from agentevolver.utils.secrets import secret
from agentevolver.utils.web.access import is_local

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 20.0
# For this long after a rate limit, the openai client does not retry by itself.
LIMITED_S = 60.0
PATIENCE_S = 600.0
"""How long a call waits for a rate limit or an outage to end."""

Bill = Callable[[Tokens], None]


def served_model(role: Role, settings: EndpointSettings) -> ServedModel:
    """Return a role's served model; raises LLMRefused if its key is not set or cannot be sent."""
    name = settings.key_variable
    if name is None:
        return ServedModel(settings.base_url, settings.model)
    key = secret(name)
    if not key:
        raise LLMRefused(
            f"{role.value}: the environment variable {name} is not set; put the key of {settings.base_url} there "
            "(.env), or set api_key_env: null if it needs none"
        )
    if bad := next((char for char in key if not " " <= char <= "~"), ""):
        raise LLMRefused(
            f"{role.value}: the key in the environment variable {name} holds {bad!r} (U+{ord(bad):04X}), which HTTP "
            "cannot carry; copy it again, without quotation marks or line breaks"
        )
    return ServedModel(settings.base_url, settings.model, key)


@dataclass
class ModelServer:
    """State of a server, shared by its roles: monotonic times of the last answer and rate limit, and whether the server
    is away."""

    answered_at: float = -math.inf
    limited_at: float = -math.inf
    is_away: bool = False

    @property
    def limits(self) -> bool:
        return time.monotonic() - self.limited_at < LIMITED_S

    def answered(self, where: str) -> None:
        if self.is_away:
            logger.warning("%s answers again", where)
        self.answered_at, self.is_away = time.monotonic(), False

    def failed(self, failure: Failure) -> None:
        # Every waiting call comes here: an outage and a server's limit are logged once each.
        if failure.again is RetryReason.OUTAGE:
            known, self.is_away = self.is_away, True
        else:
            known, self.limited_at = self.limited_at > -math.inf, time.monotonic()
        if not known:
            logger.warning("%s; calls wait for it", failure.error)


class Endpoint:
    def __init__(
        self, role: Role, settings: EndpointSettings, served: ServedModel, server: ModelServer, patience_s: float
    ) -> None:
        self.role = role
        self.settings = settings
        self.served = served
        self._server = server
        self._patience_s = patience_s
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._context = Context(self.where, (served.api_key,), settings.timeout_s)
        # Servers on this machine are reached without the environment's proxy.
        local = is_local(served.base_url)
        self._client = AsyncOpenAI(
            api_key=served.api_key,
            base_url=served.base_url,
            max_retries=settings.tries - 1,
            timeout=settings.timeout_s,
            http_client=DefaultAsyncHttpxClient(trust_env=False, timeout=settings.timeout_s) if local else None,
        )

    @property
    def where(self) -> str:
        return f"{self.role.value} ({self.served.model} at {self.served.base_url})"

    async def aclose(self) -> None:
        await self._client.close()

    async def ask(self, messages: list[dict[str, Any]], sampling: Mapping[str, Any], bill: Bill) -> LLMAnswer:
        """Send a conversation and return the answer.

        Args:
            sampling: parameters; may hold `tools`.
            bill: called with the tokens of each billed reply that cannot be used.

        Raises:
            LLMUnavailable, LLMTimeout: no try succeeded in time.
            LLMRefused: the request was refused (LLMContextOverflow: too long; LLMFiltered: stopped by a content
                filter).
            LLMReplyError: the model spent all its tokens before the answer.
        """
        # The client's timeout (httpx) is per read: a server that sends a byte now and then never exceeds it.
        longest = self.settings.tries * self.settings.timeout_s + self._patience_s
        async with self._slots:
            try:
                async with asyncio.timeout(longest):
                    return await self._ask(messages, sampling, bill)
            except TimeoutError:
                pass
        raise LLMTimeout(f"{self.where} did not finish its answer within {longest:g} s")

    async def _ask(self, messages: list[dict[str, Any]], sampling: Mapping[str, Any], bill: Bill) -> LLMAnswer:
        unusable = Retries(BackoffPolicy(tries=self.settings.tries, first_wait_s=FIRST_PAUSE_S))
        policy = BackoffPolicy(sys.maxsize, self._patience_s, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        waiting: Retries | None = None
        failed_at, began = math.inf, time.monotonic()
        for tries in itertools.count(1):
            outcome = await self._try(messages, sampling, tries)
            if isinstance(outcome, LLMAnswer):
                return outcome
            if outcome.billed is not None:
                bill(outcome.billed)
            if outcome.again is RetryReason.NO or (
                outcome.again is RetryReason.OUTAGE and not self._is_away(failed_at)
            ):
                raise outcome.error
            if outcome.again is RetryReason.UNUSABLE:
                wait = unusable.failed()
            else:
                failed_at, waiting = time.monotonic(), waiting or Retries(policy)
                wait = waiting.failed(outcome.wait_s)
            if wait is None:
                asked = "" if outcome.wait_s is None else f"; it asks to wait {outcome.wait_s:.0f} s"
                raise type(outcome.error)(f"{outcome.error}{asked} (tried for {time.monotonic() - began:.0f} s)")
            if outcome.again is not RetryReason.UNUSABLE:
                self._server.failed(outcome)
            await asyncio.sleep(wait)
        raise AssertionError("unreachable: the tries end with an answer or an error")

    def _is_away(self, failed_at: float) -> bool:
        # A server that never answered is a configuration error. One that answered another call since our failure is
        # up, so waiting would not help this request.
        return -math.inf < self._server.answered_at < failed_at

    async def _try(
        self, messages: list[dict[str, Any]], sampling: Mapping[str, Any], tries: int
    ) -> LLMAnswer | Failure:
        plain, extra = self._shaped(sampling)
        client = self._client.with_options(max_retries=0) if self._server.limits else self._client
        try:
            raw = await client.chat.completions.with_raw_response.create(
                model=self.served.model,
                messages=messages,  # type: ignore[arg-type]
                extra_body=extra or None,
                **plain,
            )
            completion = raw.parse()
        except (openai.OpenAIError, ValueError, TypeError) as error:
            # ValueError and TypeError: the body is not a chat completion.
            return read_error(error, self._context)
        self._server.answered(self.where)
        seconds = raw.elapsed.total_seconds()
        return read_completion(completion, raw.headers, seconds, tries + raw.retries_taken, self._context)

    def _shaped(self, sampling: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters of the OpenAI API, and other fields of the body."""
        omit = self.settings.omit
        sent = {name: value for name, value in sampling.items() if name not in omit}
        if "seed" in sent and self.settings.base_url not in SEEDED:
            # Most servers take seeds of 32 bits only.
            sent["seed"] = int(sent["seed"]) & 0x7FFFFFFF
        extra = {name: sent.pop(name) for name in sorted(EXTRA_SAMPLING & set(sent))}
        extra |= extra.pop("extra_body", {})
        return sent, extra

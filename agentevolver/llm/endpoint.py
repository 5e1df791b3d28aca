"""One role's endpoint at work: a client, a bounded number of calls at once, and bounded tries.

`Endpoint.ask` returns an answer or raises one of the typed errors. Nothing waits for ever: every try has a deadline that covers the whole
exchange, the tries are counted, no pause is longer than `max_wait_s`, and an outage is waited out for `unavailable_timeout_s` at most.
"""

from __future__ import annotations

import asyncio
import email.utils
import itertools
import json
import logging
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from agentevolver.llm.boundary import translate
from agentevolver.llm.errors import (
    LLMContextOverflow,
    LLMError,
    LLMFiltered,
    LLMRefused,
    LLMReplyError,
    LLMUnavailable,
    Transient,
    redact,
)
from agentevolver.llm.extract import NoAnswer, split_thinking
from agentevolver.llm.replies import Answer, ServedModel, ToolCall
from agentevolver.llm.settings import EXTRA_SAMPLING, EndpointSettings, Role
from agentevolver.utils.secrets import secret

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
# What servers call the thinking that they send apart: DeepSeek, DashScope and older vLLM; newer vLLM and OpenRouter.
_THINKING = ("reasoning_content", "reasoning")


def served_model(role: Role, settings: EndpointSettings, environ: Mapping[str, str] | None = None) -> ServedModel:
    """Return the served model of a role with an ordinary URL; raises LLMRefused if its key is not set."""
    name = settings.key_variable
    if name is None:
        return ServedModel(settings.base_url, settings.model)
    key = secret(name) if environ is None else environ.get(name, "").strip()
    if not key:
        raise LLMRefused(
            f"{role.value}: the environment variable {name} is not set; put the key of {settings.base_url} there (.env), or set "
            "api_key_env: null if it wants none"
        )
    return ServedModel(settings.base_url, settings.model, key)


def pause(attempt: int, max_wait_s: float, asked_s: float | None) -> float:
    """Return the seconds to wait after the failed try number `attempt` (from 0).

    Full jitter over an exponentially growing range; what a server asked for is waited at least, and a little jitter on top of it, so that
    not all calls come back at once.
    """
    ceiling = min(max_wait_s, FIRST_PAUSE_S * 2**attempt)
    drawn = random.uniform(0.0, ceiling)
    return drawn if asked_s is None else min(max_wait_s, asked_s + 0.1 * drawn)


def asked_wait(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks to wait (`retry-after-ms`, `Retry-After` as seconds or a date), None if it does not."""
    milliseconds, said = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        if milliseconds is not None:
            return max(0.0, float(milliseconds) / 1000.0)
        if said is not None:
            return max(0.0, float(said))
    except ValueError:
        when = email.utils.parsedate_tz(said or "")
        return max(0.0, email.utils.mktime_tz(when) - time.time()) if when else None
    return None


def is_local(url: str) -> bool:
    """Whether a URL names this machine."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


class Health:
    """Whether a server that used to answer answers nobody any more. Shared by the endpoints of all roles that ask the same server."""

    def __init__(self) -> None:
        self._answered_at: float | None = None
        self._down_since: float | None = None
        self._is_waited_for = False
        self.context_limits: dict[str, int] = {}

    def answered(self) -> None:
        """Note an answer, of whatever use."""
        now = time.monotonic()
        if self._is_waited_for and self._down_since is not None:
            logger.warning("the language model that was away answers again, after %.0f s", now - self._down_since)
        self._answered_at, self._down_since, self._is_waited_for = now, None, False

    def failed(self) -> None:
        """Note a failure that looks like an outage."""
        if self._down_since is None:
            self._down_since = time.monotonic()

    def learn_limit(self, model: str, tokens: int | None) -> None:
        """Note the length of a model's context that an error named; the smallest counts."""
        if tokens is not None:
            self.context_limits[model] = min(tokens, self.context_limits.get(model, tokens))

    def is_away(self, since: float, longest_s: float) -> bool:
        """Whether nobody has had an answer since `since` (monotonic seconds), though there were some before, for less than `longest_s`.

        A server that has never answered is a mistake in the configuration rather than an outage.
        """
        if self._answered_at is None or self._down_since is None or self.has_answered(since):
            return False
        return time.monotonic() - self._down_since < longest_s

    def has_answered(self, since: float) -> bool:
        """Whether somebody has had an answer since `since` (monotonic seconds)."""
        return self._answered_at is not None and self._answered_at >= since

    def wait(self, why: str) -> None:
        """Say, once an outage, that calls wait for its end."""
        if not self._is_waited_for:
            logger.warning("%s", why)
            self._is_waited_for = True


class Endpoint:
    """One role's endpoint, on one event loop."""

    def __init__(self, role: Role, settings: EndpointSettings, served: ServedModel, health: Health) -> None:
        self.role = role
        self.settings = settings
        self.served = served
        self._health = health
        self._places = asyncio.Semaphore(settings.concurrency)
        self._closed_until = 0.0
        # What runs on this machine is reached directly, whatever proxy the environment names.
        direct = DefaultAsyncHttpxClient(trust_env=False, timeout=settings.timeout_s) if is_local(served.base_url) else None
        self._client = AsyncOpenAI(
            api_key=served.api_key, base_url=served.base_url, max_retries=0, timeout=settings.timeout_s, http_client=direct
        )

    @property
    def where(self) -> str:
        """Role, model and URL, for messages."""
        return f"{self.role.value} ({self.served.model} at {self.served.base_url})"

    @property
    def context_limit(self) -> int | None:
        """The most tokens that prompt and reply may take: as set, or as an error has named it; None if neither is known."""
        learnt, configured = self._health.context_limits.get(self.served.model), self.settings.context_limit
        return min((limit for limit in (learnt, configured) if limit is not None), default=None)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def ask(self, messages: list[dict[str, Any]], sampling: Mapping[str, Any]) -> Answer:
        """Send a conversation; returns what was said. `sampling` may hold `tools`, those that may be called.

        Raises:
            LLMUnavailable, LLMTimeout: no try succeeded.
            LLMRefused: the request was refused (LLMContextOverflow: it is too long; LLMFiltered: a content filter stopped it).
            LLMReplyError: the model spent all its tokens before it said anything.
        """
        began, failed = time.monotonic(), 0
        for tries in itertools.count(1):
            async with self._places:
                await self._wait_until_open()
                outcome = await self._try(messages, sampling, tries)
            if isinstance(outcome, Answer):
                return outcome
            if isinstance(outcome, LLMError):
                if isinstance(outcome, LLMContextOverflow):
                    self._health.learn_limit(self.served.model, outcome.limit_tokens)
                raise outcome
            if outcome.wait_s is not None and outcome.wait_s > self.settings.max_wait_s:
                raise type(outcome.error)(f"{outcome.error}; it asks to wait {outcome.wait_s:.0f} s, more than max_wait_s")
            failed += 1
            if failed > self.settings.tries and self._health.has_answered(began):
                # The outage that this call waited for is over, and its tries count anew.
                began, failed = time.monotonic(), 1
            if failed >= self.settings.tries:
                longest = self.settings.unavailable_timeout_s
                if not outcome.is_outage or not self._health.is_away(began, longest):
                    raise type(outcome.error)(f"{outcome.error} (tried {tries} times)")
                self._health.wait(f"{outcome.error}; waiting for it, {longest:g} s at most")
            wait = pause(min(failed, self.settings.tries) - 1, self.settings.max_wait_s, outcome.wait_s)
            if outcome.wait_s is not None:
                self._closed_until = max(self._closed_until, time.monotonic() + outcome.wait_s)
            logger.debug("%s; trying again in %.1f s", outcome.error, wait)
            await asyncio.sleep(wait)
        raise AssertionError("unreachable: the tries end with an answer or an error")

    async def _wait_until_open(self) -> None:
        """Keep all calls back while the server wants a pause, instead of finding out one by one."""
        wait = self._closed_until - time.monotonic()
        if wait > 0:
            await asyncio.sleep(min(wait, self.settings.max_wait_s))

    async def _try(self, messages: list[dict[str, Any]], sampling: Mapping[str, Any], tries: int) -> Answer | LLMError | Transient:
        """Make one try. Errors are returned: raised from here they would carry the client's exception, which may show a key."""
        extra = {key: value for key, value in sampling.items() if key in EXTRA_SAMPLING}
        plain = {key: value for key, value in sampling.items() if key not in EXTRA_SAMPLING}
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                completion = await self._client.chat.completions.create(
                    model=self.served.model,
                    messages=messages,  # type: ignore[arg-type]
                    extra_body=extra or None,
                    **plain,
                )
        except (openai.OpenAIError, TimeoutError, ValueError, TypeError) as error:
            # ValueError and TypeError: a body that is JSON of another shape, or none.
            wait = asked_wait(error.response.headers) if isinstance(error, openai.APIStatusError) else None
            outcome = translate(error, self.where, [self.served.api_key], self.settings.timeout_s, wait)
            if isinstance(outcome, Transient) and outcome.is_outage:
                self._health.failed()
            return outcome
        self._health.answered()
        return self._read(completion, time.perf_counter() - began, tries)

    def _read(self, completion: Any, seconds: float, tries: int) -> Answer | LLMError | Transient:
        choices = getattr(completion, "choices", None)
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = getattr(choice, "message", None)
        if choice is None or message is None:
            return Transient(LLMUnavailable(f"{self.where} answered without a choice"))
        text = content if isinstance(content := getattr(message, "content", None), str) else ""
        reason = str(getattr(choice, "finish_reason", None) or "stop")
        if reason == "content_filter":
            return LLMFiltered(f"{self.where} withheld its reply (content filter)")
        calls = _tool_calls(message)
        if not text.strip() and not calls:
            if reason == "length":
                return LLMReplyError(f"{self.where} spent all its tokens before it said anything; raise sampling.max_tokens", text)
            if refusal := getattr(message, "refusal", None):
                return LLMRefused(f"{self.where} refused: {redact(str(refusal))}")
            return Transient(LLMUnavailable(f"{self.where} answered nothing"))
        usage = getattr(completion, "usage", None)
        counts = [getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens")]
        prompt, said = (count if isinstance(count, int) else None for count in counts)
        thinking = next((found for name in _THINKING if isinstance(found := getattr(message, name, None), str)), "")
        with suppress(NoAnswer):  # thinking that never ended: the reply is left as it is
            inline, rest = split_thinking(text)
            if inline and (rest.strip() or calls):
                thinking, text = thinking or inline, rest.strip()
        return Answer(text, prompt, said, reason, seconds, tries, calls, thinking)


def _tool_calls(message: Any) -> tuple[ToolCall, ...]:
    found = []
    for call in getattr(message, "tool_calls", None) or ():
        function = getattr(call, "function", None)
        name, arguments = getattr(function, "name", None), getattr(function, "arguments", None)
        if not isinstance(name, str) or not name:
            continue
        if not isinstance(arguments, dict):
            with suppress(ValueError, TypeError):
                arguments = json.loads(arguments or "{}", strict=False)
        found.append(ToolCall(name, arguments if isinstance(arguments, dict) else str(arguments)))
    return tuple(found)

"""Endpoint of one role: HTTP client with bounded concurrency, tries and waits.

`Endpoint.ask` returns an answer or raises one of the typed errors. Nothing waits for ever: every try has a deadline
that covers the whole exchange, tries are counted, rate limits and outages are waited out for `rate_limit_timeout_s` and
`unavailable_timeout_s`, and the whole call has `call_timeout_s`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from agentevolver.llm.dialect import Dialect, Learnt, dialect_of, learn, prompt_named, shape, unsent
from agentevolver.llm.errors import Answer, LLMContextOverflow, LLMRefused, LLMTimeout, LLMUnavailable, ServedModel
from agentevolver.llm.responses import Again, Asked, Failure, read_completion, read_error
from agentevolver.llm.server import Server
from agentevolver.llm.settings import OFFLINE, POLICY, EndpointSettings, Role
from agentevolver.utils.retry import Retries, RetryPolicy
from agentevolver.utils.secrets import secret
from agentevolver.utils.web.access import is_local

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
# Refusals of one request that may each teach another parameter.
MOST_LESSONS = 8
# What is kept free beside a prompt, whose length is an estimate.
_SPARE = 64
Bill = Callable[[tuple[int | None, int | None]], None]


def served_model(role: Role, settings: EndpointSettings, environ: Mapping[str, str] | None = None) -> ServedModel:
    """Return the served model of a role with an ordinary URL; raises LLMRefused if its key is not set."""
    name = settings.key_variable
    if name is None:
        return ServedModel(settings.base_url, settings.model)
    key = secret(name) if environ is None else environ.get(name, "").strip()
    if not key:
        raise LLMRefused(
            f"{role.value}: the environment variable {name} is not set; put the key of {settings.base_url} there "
            "(.env), or set "
            "api_key_env: null if it wants none"
        )
    return ServedModel(settings.base_url, settings.model, key)


class Endpoint:
    """Calls to one role's endpoint, on one event loop."""

    def __init__(self, role: Role, settings: EndpointSettings, served: ServedModel, server: Server) -> None:
        self.role = role
        self.settings = settings
        self.served = served
        self.server = server
        # The policy is served by vLLM; the built-in teacher takes everything.
        own = {POLICY: "vllm", OFFLINE: "vllm"}.get(settings.base_url, settings.dialect)
        self.dialect: Dialect = dialect_of(own, served.base_url, served.model)  # type: ignore[arg-type]
        self._places = asyncio.Semaphore(settings.concurrency)
        self._policy = RetryPolicy(tries=settings.tries, first_wait_s=FIRST_PAUSE_S, max_wait_s=settings.max_wait_s)
        self._asked = Asked(self.where, (served.api_key,), settings.timeout_s, self.dialect.quota_is_rate)
        self._has_told = False
        azures = {"api-key": served.api_key, "Authorization": openai.Omit()}
        self._headers: dict[str, Any] | None = azures if self.dialect.name == "azure" else None
        self._client = _client(settings, served, self.dialect)

    @property
    def where(self) -> str:
        """Role, model and URL, for messages."""
        return f"{self.role.value} ({self.served.model} at {self.served.base_url})"

    @property
    def learnt(self) -> Learnt:
        """What this model's refusals have taught."""
        return self.server.learnt[self.served.model]

    @property
    def context_limit(self) -> int | None:
        """The most tokens that prompt and reply may take: as set, or as an error has named it;
        None if neither is known."""
        known = (self.learnt.context_limit, self.settings.context_limit)
        return min((limit for limit in known if limit is not None), default=None)

    @property
    def unsent(self) -> frozenset[str]:
        """The parameters that are never sent: by the dialect, by the configuration, or since they were refused."""
        return self.dialect.omit | self.learnt.omit | frozenset(self.settings.omit)

    async def named_context(self) -> int | None:
        """Return the context's length as the server's list of models tells it (vLLM, Groq, OpenRouter),
        None if it does not."""
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                models = await self._client.models.list(extra_headers=self._headers)
        except (openai.OpenAIError, TimeoutError, ValueError, TypeError, AttributeError):
            return None
        model = next((model for model in models.data or () if getattr(model, "id", None) == self.served.model), None)
        named = (getattr(model, name, None) for name in ("max_model_len", "context_length", "context_window"))
        return next((length for length in named if isinstance(length, int)), None)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def ask(
        self,
        messages: list[dict[str, Any]],
        sampling: Mapping[str, Any],
        prompt_tokens: int,
        reply_tokens: int,
        bill: Bill,
    ) -> Answer:
        """Send a conversation; returns what was said.

        Args:
            messages: the conversation.
            sampling: its parameters; may hold `tools`, those that may be called.
            prompt_tokens, reply_tokens: what is expected, for limits on tokens per minute and on the context.
            bill: is told the tokens of each try that was billed and cannot be used (None where the server did not count
                them).

        Raises:
            LLMUnavailable, LLMTimeout: no try succeeded in time.
            LLMRefused: the request was refused (LLMContextOverflow: it is too long; LLMFiltered: a content filter
            stopped it). LLMReplyError: the model spent all its tokens before it said anything.
        """
        async with self._places:
            try:
                async with asyncio.timeout(self.settings.call_timeout_s):
                    return await self._ask(messages, dict(sampling), prompt_tokens, reply_tokens, bill)
            except TimeoutError:
                pass
        raise LLMTimeout(f"{self.where} gave no answer in all of call_timeout_s = {self.settings.call_timeout_s:g} s")

    async def _ask(
        self,
        messages: list[dict[str, Any]],
        sampling: dict[str, Any],
        prompt_tokens: int,
        reply_tokens: int,
        bill: Bill,
    ) -> Answer:
        failing_since, retries = 0.0, Retries(self._policy)
        limited_since: float | None = None
        lessons = 0
        for tries in itertools.count(1):
            async with self.server.window.place():
                await self._wait_for_turn(prompt_tokens + reply_tokens, limited_since)
                sent = time.time(), time.monotonic()
                plain, extra = self._shaped(sampling, prompt_tokens)
                outcome, headers = await self._try(messages, plain, extra, tries)
            if isinstance(outcome, Answer):
                taken = (outcome.prompt_tokens or prompt_tokens) + (outcome.completion_tokens or reply_tokens)
                self.server.answered(sent[0], taken - prompt_tokens - reply_tokens, headers, self.settings.max_wait_s)
                return outcome
            if outcome.billed is not None:
                bill(outcome.billed)
            if outcome.again is Again.NO:
                lessons += 1
                if lessons > MOST_LESSONS or not self._learns(outcome, plain, extra, sampling, prompt_tokens):
                    raise outcome.error
            elif outcome.again is Again.RATE:
                limited_since = sent[1] if limited_since is None else limited_since
                self._is_limited(outcome, sent, limited_since)
            else:
                if retries.failures == 0:
                    # Not since the call began: others may have been answered then, and the server gone since.
                    failing_since = time.monotonic()
                await self._is_failing(outcome, retries, failing_since, tries)
        raise AssertionError("unreachable: the tries end with an answer or an error")

    async def _wait_for_turn(self, tokens: int, limited_since: float | None) -> None:
        """Wait for the reserved moment and for the end of any pause;
        raises LLMUnavailable for a pause that is too long."""
        due = time.monotonic() + self.server.pace.reserve(tokens)
        since = time.monotonic() if limited_since is None else limited_since
        while True:
            self.server.keep_up()
            now, closed = time.monotonic(), self.server.pace.closed_for()
            if closed and now + closed > since + self.settings.rate_limit_timeout_s:
                raise LLMUnavailable(
                    f"{self.where} is left alone for another {closed:.1f} s for its rate limit (HTTP 429), longer than "
                    f"rate_limit_timeout_s = {self.settings.rate_limit_timeout_s:g} allows"
                )
            wait = max(due - now, closed)
            if wait <= 0:
                return
            # Not all calls of all processes come back at once.
            await asyncio.sleep(wait + (random.uniform(0.0, 0.1 * closed) if closed else 0.0))

    def _is_limited(self, outcome: Failure, sent: tuple[float, float], since: float) -> None:
        """Note a rate limit; raises its error if it lasts too long."""
        longest, asked = self.settings.rate_limit_timeout_s, outcome.wait_s
        waited = time.monotonic() - since
        if asked is not None and waited + asked > longest:
            raise type(outcome.error)(
                f"{outcome.error}; it asks to wait {asked:.0f} s, more than rate_limit_timeout_s allows"
            )
        pause = self.server.refused(sent, asked, self.settings.max_wait_s, outcome.per_minute, str(outcome.error))
        if waited + pause > longest:
            raise type(outcome.error)(f"{outcome.error} (for {waited:.0f} s now; rate_limit_timeout_s = {longest:g})")

    async def _is_failing(self, outcome: Failure, retries: Retries, since: float, tries: int) -> None:
        """Wait after a failure; raises its error if there is to be no other try.
        An outage is waited out beyond the tries."""
        settings, health = self.settings, self.server.health
        if outcome.again is Again.OUTAGE:
            health.failed()
        longest = max(settings.max_wait_s, settings.unavailable_timeout_s if outcome.again is Again.OUTAGE else 0.0)
        if outcome.wait_s is not None and outcome.wait_s > longest:
            raise type(outcome.error)(
                f"{outcome.error}; it asks to wait {outcome.wait_s:.0f} s, more than {longest:g} s"
            )
        wait = retries.failed(outcome.wait_s)
        if wait is None:
            if health.has_answered(since) and retries.failures > settings.tries:
                # The outage that this call waited for is over, and its tries count anew.
                retries.renew()
                wait = self._policy.pause(1, outcome.wait_s)
            elif outcome.again is Again.OUTAGE and health.is_away(since, settings.unavailable_timeout_s):
                health.wait(f"{outcome.error}; waiting for it, {settings.unavailable_timeout_s:g} s at most")
                wait = self._policy.pause(retries.failures, outcome.wait_s)
            else:
                raise type(outcome.error)(f"{outcome.error} (tried {tries} times)")
        logger.debug("%s; trying again in %.1f s", outcome.error, wait)
        await asyncio.sleep(wait)

    def _shaped(self, sampling: dict[str, Any], prompt_tokens: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what is sent, in the server's dialect; the limit on the reply leaves room for the prompt, where the
        context is known."""
        if not self._has_told and (kept := unsent(sampling, self.dialect, self.settings.omit)):
            self._has_told = True
            logger.info("%s is not sent %s (dialect %s, omit)", self.where, ", ".join(kept), self.dialect.name)
        if self.context_limit is not None:
            room = self.context_limit - int(1.1 * prompt_tokens) - _SPARE
            for name in ("max_tokens", "max_completion_tokens"):
                if room >= _SPARE and sampling.get(name) is not None:
                    sampling[name] = min(sampling[name], room)
        return shape(sampling, self.dialect, self.learnt, self.settings.omit)

    def _learns(
        self,
        outcome: Failure,
        plain: dict[str, Any],
        extra: dict[str, Any],
        sampling: dict[str, Any],
        prompt_tokens: int,
    ) -> bool:
        """Whether a refusal says how to ask instead, which is remembered for all roles."""
        if isinstance(outcome.error, LLMContextOverflow):
            limit, learnt = outcome.error.limit_tokens, self.learnt
            if limit is None:
                return False
            if learnt.context_limit is None or limit < learnt.context_limit:
                learnt.context_limit = limit
                logger.warning("%s takes %d tokens at most, prompt and reply together", self.where, limit)
            # Worth another try only where it is the reply that was given too much room.
            name = next((name for name in ("max_tokens", "max_completion_tokens") if name in plain), None)
            room = limit - (prompt_named(outcome.said) or int(1.1 * prompt_tokens)) - _SPARE
            if name is None or not _SPARE <= room < plain[name]:
                return False
            sampling[name if name in sampling else "max_tokens"] = room
            return True
        if type(outcome.error) is not LLMRefused:
            return False
        lesson = learn(outcome.said, outcome.named, plain, extra, self.learnt)
        if lesson is None:
            return False
        logger.warning("%s: %s (%s); it is asked without from now on", self.where, lesson, outcome.said)
        return True

    async def _try(
        self, messages: list[dict[str, Any]], plain: dict[str, Any], extra: dict[str, Any], tries: int
    ) -> tuple[Answer | Failure, Mapping[str, str]]:
        """Make one try. Errors are returned: raised from here they would carry the client's exception,
        which may show a key."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                raw = await self._client.chat.completions.with_raw_response.create(
                    model=self.served.model,
                    messages=messages,  # type: ignore[arg-type]
                    extra_body=extra or None,
                    extra_headers=self._headers,
                    **plain,
                )
                completion = raw.parse()
        except (openai.OpenAIError, TimeoutError, ValueError, TypeError) as error:
            # ValueError and TypeError: a body that is JSON of another shape, or none.
            return read_error(error, self._asked), {}
        self.server.health.answered()
        return read_completion(completion, raw.headers, time.perf_counter() - began, tries, self._asked), raw.headers


def _client(settings: EndpointSettings, served: ServedModel, dialect: Dialect) -> AsyncOpenAI:
    # What runs on this machine is reached directly, whatever proxy the environment names.
    direct = DefaultAsyncHttpxClient(trust_env=False, timeout=settings.timeout_s) if is_local(served.base_url) else None
    base_url = served.base_url
    if dialect.name == "azure" and not urlsplit(base_url).path.strip("/"):
        # Azure's older addresses name the deployment, which is the model.
        base_url = f"{base_url}/openai/deployments/{served.model}"
    return AsyncOpenAI(
        api_key=served.api_key,
        base_url=base_url,
        max_retries=0,
        timeout=settings.timeout_s,
        http_client=direct,
        default_query={"api-version": settings.api_version} if settings.api_version else None,
    )

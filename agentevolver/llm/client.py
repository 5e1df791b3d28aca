"""Client of the roles' language models: `chat` returns text, `structured` a validated model.

`LLM` is safe for concurrent calls on one event loop. Calls raise only `LLMError`, and ValueError for an unknown
sampling parameter.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import BaseModel

from agentevolver.llm.endpoint import PATIENCE_S, Endpoint, ModelServer, served_model
from agentevolver.llm.errors import (
    LLMAnswer,
    LLMContextOverflow,
    LLMError,
    LLMFiltered,
    LLMRefused,
    LLMReply,
    LLMReplyError,
    LLMUnavailable,
    ServedModel,
)
from agentevolver.llm.examples import with_examples
from agentevolver.llm.prompts import CHARS_PER_TOKEN
from agentevolver.llm.reply import NoAnswer, read_reply
from agentevolver.llm.responses import Tokens
from agentevolver.llm.settings import (
    OFFLINE,
    POLICY,
    SEEDED,
    TEACHER_TOKEN,
    LLMSettings,
    Role,
    check_sampling,
    merged,
)
from agentevolver.llm.store import Ledger, ReplyCache, Stored, Usage, cache_key
from agentevolver.utils import seeds
from agentevolver.utils.inflight import BOARD
from agentevolver.utils.secrets import secret

logger = logging.getLogger(__name__)

_LATENCIES = 4096
# Most of a context that a reply may take: with the usual max_tokens, a model of a short context refuses every prompt.
_REPLYS_SHARE = 0.25
_TOKENS = ("max_tokens", "max_completion_tokens")
_COUNTS = ("calls", "prompt_tokens", "completion_tokens", "cost", "errors", "repairs", "retries", "cached", "unusable")


@dataclass(slots=True)
class RoleCounts:
    """Counters of a role's calls since the start, and the latencies of its last calls in seconds.

    `prompt_tokens`, `completion_tokens` and `cost` count everything billed. `unusable` counts replies that were billed
    but could not be used; `answered_*` count usable replies only, for estimates.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_chars: int = 0
    cost: float = 0.0
    errors: int = 0
    repairs: int = 0
    retries: int = 0
    cached: int = 0
    unusable: int = 0
    answered_prompt_tokens: int = 0
    answered_tokens: int = 0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))

    def estimate(self, chars: int) -> tuple[int, int]:
        """Return the (prompt, completion) tokens to expect of a prompt with `chars` characters."""
        per_char = self.answered_prompt_tokens / self.prompt_chars if self.prompt_chars else 1 / CHARS_PER_TOKEN
        return math.ceil(chars * per_char), self.answered_tokens // self.calls if self.calls else 0

    def metrics(self) -> dict[str, float]:
        out = {name: float(getattr(self, name)) for name in _COUNTS}
        if self.latencies:
            ordered = sorted(self.latencies)
            out["latency_mean"] = math.fsum(ordered) / len(ordered)
            out["latency_p95"] = ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)]
        return out


M = TypeVar("M", bound=BaseModel)
PolicySource = ServedModel | Callable[[], ServedModel | Awaitable[ServedModel | None] | None]

_REPAIR = (
    "Your reply cannot be used: {problem}.\nReply again with the JSON alone, without any other text. It must "
    "fit this schema:\n{schema}"
)


class LLM:
    def __init__(
        self,
        settings: LLMSettings,
        *,
        ledger: Ledger | None = None,
        policy: PolicySource | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Open the cache and the ledger.

        Args:
            ledger: a ledger shared with other spenders of the budget; None opens one at `settings.ledger`.
            policy: the served policy, for roles with `base_url: policy`; a callable is called for every request.
            patience_s: how long a call waits for a rate limit or an outage to end.

        Raises:
            LLMError: the file of the cache or of the ledger cannot be opened.
        """
        self.settings = settings
        self._owns_ledger = ledger is None
        self.ledger = Ledger(settings.ledger, settings.budget) if ledger is None else ledger
        self._cache = ReplyCache(settings.cache) if settings.cache else None
        self._policy = policy
        self._patience_s = patience_s
        self._endpoints: dict[Role, Endpoint] = {}
        self._retired: list[Endpoint] = []
        self._servers: dict[str, ModelServer] = {}
        self._counts: dict[Role, RoleCounts] = {}
        self._adapted: dict[ServedModel, dict[str, Any]] = {}
        self._formatless: dict[Role, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        # The counts stay: metrics are readable after this.
        endpoints = [*self._endpoints.values(), *self._retired]
        self._endpoints, self._retired = {}, []
        for endpoint in endpoints:
            await endpoint.aclose()
        if self._cache is not None:
            self._cache.close()
            self._cache = None
        if self._owns_ledger:
            self.ledger.close()

    async def chat(
        self, role: Role, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **sampling: Any
    ) -> LLMReply:
        """Send a conversation to a role's model.

        Args:
            tools: OpenAI-style schemas of tools that the model may call natively.
            sampling: parameters laid over the role's own; None removes one. For several replies to one prompt, give
                each its own `seed`: otherwise the cache returns the first reply again.

        Raises:
            BudgetExceeded: the budget is spent; nothing was sent.
            LLMUnavailable, LLMTimeout, LLMRefused, LLMReplyError: see there.
            ValueError: an unknown sampling parameter.
        """
        return (await self._chat(role, messages, sampling, tools))[0]

    async def structured(self, role: Role, messages: list[dict[str, Any]], schema: type[M], **sampling: Any) -> M:
        """Return the JSON of the reply as a `schema` model. A reply that does not fit goes back to the model once, with
        the problem.

        Raises:
            LLMReplyError: the repaired reply does not fit either; `text` is that reply.
            Others as `chat`.
        """
        sampling = {**self.settings.endpoint(role).response_format(schema), **sampling}
        said, key = "", None
        try:
            reply, key = await self._chat(role, messages, sampling)
            said = reply.answer
            return read_reply(said, schema)
        except NoAnswer as error:
            first_problem = str(error) + ("; it was cut, say less" if reply.finish_reason == "length" else "")
        except LLMReplyError as error:
            first_problem = str(error)
        self._count(role).repairs += 1
        wanted = json.dumps(schema.model_json_schema(), ensure_ascii=False)
        request = _REPAIR.format(problem=first_problem, schema=wanted)
        # Some servers refuse a message without content.
        again = [*messages, {"role": "assistant", "content": said or "(nothing)"}, {"role": "user", "content": request}]
        repaired, second_key = await self._chat(role, again, sampling)
        try:
            return read_reply(repaired.answer, schema)
        except NoAnswer as error:
            second_problem = str(error)
        # A rerun must not get the same unusable replies from the cache.
        for useless in filter(None, (key, second_key)):
            if self._cache is not None:
                self._cache.forget(useless)
        self._count(role).errors += 1
        raise LLMReplyError(f"{role.value}: no usable reply, also after one repair: {second_problem}", repaired.answer)

    def metrics(self) -> dict[str, float]:
        """Return the counts of every role called so far, as `llm/<role>/<name>`, and the run's total spending."""
        out = {
            f"llm/{role.value}/{name}": value
            for role, counts in self._counts.items()
            for name, value in counts.metrics().items()
        }
        if self._counts:
            spent = self.ledger.spent()
            out |= {"llm/spent_tokens": float(spent.tokens), "llm/spent_cost": spent.cost}
        return out

    def refused_format(self, role: Role) -> str | None:
        """Return the error with which a role's endpoint refused `response_format`, or None if it accepts that."""
        return self._formatless.get(role)

    def counts(self, role: Role) -> RoleCounts:
        return self._count(role)

    async def _chat(
        self,
        role: Role,
        messages: list[dict[str, Any]],
        sampling: dict[str, Any],
        tools: list[dict[str, Any]] | None = None,
    ) -> tuple[LLMReply, str | None]:
        """Return the reply, and its cache key or None."""
        settings = self.settings.endpoint(role)
        parameters = check_sampling(merged(settings.sampling, sampling)) | ({"tools": tools} if tools else {})
        if settings.base_url in SEEDED and (draws := seeds.current()) is not None:
            parameters.setdefault("seed", draws.seed(role.value, seeds.derived(json.dumps(messages, sort_keys=True))))
        counts = self._count(role)
        try:
            endpoint = await self._endpoint(role)
            if settings.base_url != OFFLINE:
                messages = with_examples(messages)
            key = None
            # The policy's weights change, so its replies are never cached.
            if self._cache is not None and settings.base_url != POLICY:
                key = cache_key(endpoint.served.base_url, endpoint.served.model, messages, parameters)
                if (stored := self._cache.get(key)) is not None:
                    counts.cached += 1
                    return stored.reply(), key
            reply = await self._adapting(endpoint, messages, parameters)
        except LLMError:
            counts.errors += 1
            raise
        if key is not None and self._cache is not None:
            self._cache.put(key, Stored.of(reply))
        return reply, key

    async def _adapting(
        self, endpoint: Endpoint, messages: list[dict[str, Any]], parameters: dict[str, Any]
    ) -> LLMReply:
        """Send a request within the limits that the endpoint has shown: shorter replies for a small context, and no
        JSON schema if the endpoint refuses schemas."""
        known = self._adapted.setdefault(endpoint.served, {})
        sent = {**parameters, **{name: value for name, value in known.items() if name in parameters}}
        sent = {name: value for name, value in sent.items() if value is not None}
        try:
            return await self._shorter(endpoint, messages, sent, known)
        except (LLMContextOverflow, LLMFiltered):
            raise
        except LLMRefused as error:
            if "response_format" not in sent:
                raise
            del sent["response_format"]
            try:
                reply = await self._shorter(endpoint, messages, sent, known)
            except LLMRefused:
                # It was not the format that it refuses.
                raise error from None
            if "response_format" not in known:
                logger.warning("the endpoint refuses response_format, so only the prompt asks for JSON: %s", error)
            known["response_format"] = None
            self._formatless[endpoint.role] = str(error)
            return reply

    async def _shorter(
        self, endpoint: Endpoint, messages: list[dict[str, Any]], sent: dict[str, Any], known: dict[str, Any]
    ) -> LLMReply:
        try:
            return await self._send(endpoint, messages, sent)
        except LLMContextOverflow as error:
            name = next((name for name in _TOKENS if name in sent), None)
            most = int((error.limit_tokens or 0) * _REPLYS_SHARE)
            if name is None or not 0 < most < sent[name]:
                raise
            if name not in known:
                logger.warning(
                    "%s: replies are limited to %d tokens from here on, a quarter of the model's context of %d; "
                    "sampling.%s is %d",
                    *(endpoint.where, most, error.limit_tokens, name, sent[name]),
                )
            known[name] = sent[name] = most
            return await self._send(endpoint, messages, sent)

    async def _send(self, endpoint: Endpoint, messages: list[dict[str, Any]], parameters: dict[str, Any]) -> LLMReply:
        counts = self._count(endpoint.role)
        chars = sum(len(str(message.get("content", ""))) for message in messages)
        estimate = self._usage(endpoint, *counts.estimate(chars))
        self.ledger.begin(estimate)
        used = Usage()

        def bill(tokens: Tokens) -> None:
            nonlocal used
            prompt, said = tokens
            used += self._usage(endpoint, estimate.prompt_tokens if prompt is None else prompt, said or 0)
            counts.unusable += 1

        try:
            with BOARD.call(f"the {endpoint.role.value}'s model"):
                answer = await endpoint.ask(messages, parameters, bill)
            reply = _reply(answer, estimate.prompt_tokens)
            used += self._usage(endpoint, reply.prompt_tokens, reply.completion_tokens)
            counts.calls += 1
            counts.retries += answer.tries - 1
            counts.prompt_chars += chars
            counts.answered_prompt_tokens += reply.prompt_tokens
            counts.answered_tokens += reply.completion_tokens
            counts.latencies.append(reply.seconds)
        finally:
            self.ledger.settle(endpoint.role.value, estimate, used)
            counts.prompt_tokens += used.prompt_tokens
            counts.completion_tokens += used.completion_tokens
            counts.cost += used.cost
        return reply

    async def _endpoint(self, role: Role) -> Endpoint:
        settings = self.settings.endpoint(role)
        if settings.base_url == POLICY:
            # For each call: a restarted engine may have another address.
            served = await self._policy_model(role)
        elif settings.base_url == OFFLINE:
            key = secret(TEACHER_TOKEN)
            served = ServedModel(self.settings.teacher.url, settings.model, **({"api_key": key} if key else {}))
        else:
            served = served_model(role, settings)
        known = self._endpoints.get(role)
        if known is None or known.served != served:
            if known is not None:
                # Calls may still run on the old endpoint; `aclose` closes it.
                self._retired.append(known)
            server = self._servers.setdefault(served.base_url, ModelServer())
            known = self._endpoints[role] = Endpoint(role, settings, served, server, self._patience_s)
        return known

    async def _policy_model(self, role: Role) -> ServedModel:
        found = self._policy() if callable(self._policy) else self._policy
        if inspect.isawaitable(found):
            found = await found
        if found is None:
            raise LLMUnavailable(
                f"{role.value}: base_url is `policy`, and the policy is not served yet, or not in this process"
            )
        return found

    @staticmethod
    def _usage(endpoint: Endpoint, prompt_tokens: int, completion_tokens: int) -> Usage:
        cost = (prompt_tokens * endpoint.settings.price_in + completion_tokens * endpoint.settings.price_out) / 1e6
        return Usage(1, prompt_tokens, completion_tokens, cost)

    def _count(self, role: Role) -> RoleCounts:
        return self._counts.setdefault(role, RoleCounts())


def _reply(answer: LLMAnswer, prompt_estimate: int) -> LLMReply:
    prompt = prompt_estimate if answer.prompt_tokens is None else answer.prompt_tokens
    said = max(1, len(answer.text) // CHARS_PER_TOKEN) if answer.completion_tokens is None else answer.completion_tokens
    return LLMReply(
        answer.text, prompt, said, answer.seconds, False, answer.finish_reason, answer.tool_calls, answer.thinking
    )

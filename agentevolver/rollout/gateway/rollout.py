"""A rollout behind the gateway: the policy answers an agent's calls, which become training samples.

Calls that continue one another form one chain of ids: sampled ids are kept, new messages are rendered and appended, and
nothing is tokenised twice. An agent that edits its history, or has subagents, creates further chains.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from array import array
from collections import Counter
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from agentevolver.rollout.engine import Engine, EngineError, EngineRefused, Generated
from agentevolver.rollout.gateway.matching import Chain, Difference, Key, Turn, difference, find, key_of
from agentevolver.rollout.gateway.openings import Guide, Openings
from agentevolver.rollout.gateway.request import Completion, Finish, GatewayRequest, Message, RequestRefused, invalid
from agentevolver.rollout.gateway.toolbox import Toolbox, Toolboxes
from agentevolver.rollout.tools.schema import ToolFormat, call_id
from agentevolver.types import Step, StopReason, TrainingSample
from agentevolver.utils import seeds
from context_manager.chat import ChatRenderer, ChatTemplateError
from context_manager.samples import UNTOUCHED, CallSnapshot, SampleChoice, SampleLimits, SnapshotRecorder
from context_manager.settings import ContextLimits
from experience_manager.guide import Injection

__all__ = ["CallLimits", "Difference", "GatewayRollout", "Guide"]

# Seconds after which a client may retry when the engine failed.
RETRY_S = 1.0
# Stop reason of the rollout if the agent gives up after a refusal.
_STOPS = {
    "context_length_exceeded": StopReason.CONTEXT_FULL,
    "rollout_limit": StopReason.MAX_STEPS,
    "engine_failed": StopReason.LLM_ERROR,
}


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of a rollout's calls.

    `sampled_tokens` None means no limit. After `failures` engine failures in a row the rollout ends as `llm_error`.
    """

    calls: int = 200
    sampled_tokens: int | None = None
    failures: int = 3


@dataclass(frozen=True, slots=True)
class _Call:
    """A call in progress.

    `after` is the turn that it continues, `new` the messages since that turn. If `joins` is true it extends the turn's
    chain, otherwise it begins a chain of its own.
    """

    number: int
    seed: int | None
    request: GatewayRequest
    keys: list[Key]
    tools: Toolbox
    chain: Chain
    prompt: list[int]
    after: Turn | None
    new: list[Message]
    joins: bool


class GatewayRollout:
    """One rollout, for one event loop. Concurrent calls are separate turns, numbered by arrival.

    Args:
        renderer: the policy's chat template, without tools.
        tool_format: reads calls out of replies; None: requests with tools are refused.
        sampling_params: override the agent's own.
        request_id: sent with every call to the engine.
        no_think: append `/no_think` to messages that are not the policy's.
        max_samples: limit of training samples; None: one for each chain.

    Attributes:
        opening: the first call's messages, without guidance.
        messages: all messages in order, with guidance; common parts of chains occur once.
        dropped: unusable training samples by reason, after `samples`.
        ignored, refused: requests by ignored field, and by code of refusal.
        problems: replies with a malformed call; structured: replies under constrained decoding (off-policy).
        differences: why each chain but the first began.
        stop_reason, note: why the last call was refused, or None; `max_steps` stays.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: ChatRenderer,
        tool_format: ToolFormat | None,
        limits: ContextLimits,
        sampling_params: dict[str, Any],
        request_id: str,
        guide: Guide | None = None,
        *,
        no_think: bool = False,
        call_limits: CallLimits | None = None,
        max_samples: int | None = 8,
        sample_choice: SampleChoice = "spread",
    ) -> None:
        self.opening: list[Message] = []
        self.messages: list[Message] = []
        self.versions: set[int] = set()
        self.generate_s = 0.0
        self.dropped: Counter[str] = Counter()
        self.ignored: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.problems = 0
        self.structured = 0
        self.differences: list[Difference] = []
        self.stop_reason: StopReason | None = None
        self.note = ""
        self._engine = engine
        self._tools = Toolboxes(renderer, tool_format)
        self._limits = limits
        self._sampling = sampling_params
        self._request_id = request_id
        self._openings = Openings(guide, no_think=no_think, max_prompt_tokens=limits.max_prompt_tokens)
        self._call_limits = call_limits or CallLimits()
        self._sample_limits = SampleLimits(
            limits.max_prompt_tokens, limits.max_response_tokens, max_samples, sample_choice
        )
        # Context variables of the rollout: the server handles requests in contexts of its own.
        self._context = copy_context()
        self._draws = seeds.current()
        self._begun = 0
        self._returned: list[tuple[int, int | None]] = []
        self._failures = 0
        self._sampled = 0
        self._chains: list[Chain] = []
        self._waiting: set[asyncio.Future[Generated]] = set()
        self._closed: str | None = None
        self._remembered: dict[str, list[Message]] = {}

    # ---- what a server calls ----

    async def complete(self, request: GatewayRequest) -> Completion:
        """Answer a call. A refusal (RequestRefused) records nothing."""
        try:
            self._admit()
            number, seed = self._begin()
            try:
                return await self._answer(request, number, seed)
            except BaseException:
                # The next call gets this seed, so that an outage changes no reply.
                heapq.heappush(self._returned, (number, seed))
                raise
        except RequestRefused as refusal:
            self.refused[refusal.code] += 1
            if refusal.code in _STOPS or self.stop_reason is None:
                self.stop_reason, self.note = _STOPS.get(refusal.code), refusal.text
            raise

    def count(self, request: GatewayRequest) -> int:
        """Return the tokens of a call's prompt. Raises RequestRefused."""
        self._check_open()
        return len(self._call(request, 0, None, self._tools.of(request.tools)).prompt)

    def remember(self, response_id: str, messages: list[Message]) -> None:
        """Keep a conversation under a response's id, for later calls (`previous_response_id`)."""
        self._remembered[response_id] = messages

    def remembered(self, response_id: str) -> list[Message] | None:
        return self._remembered.get(response_id)

    def close(self, reason: str) -> None:
        """End the rollout: waiting and later calls are refused with the reason."""
        if self._closed is None:
            self._closed = reason
        for waiting in list(self._waiting):
            waiting.cancel()

    # ---- what a rollout reads ----

    @property
    def closed(self) -> bool:
        return self._closed is not None

    @property
    def injection(self) -> Injection | None:
        """The guidance before the task, or None if the guide was not asked."""
        return self._openings.injection

    @property
    def chains(self) -> int:
        return len(self._chains)

    @property
    def calls(self) -> int:
        return sum(len(chain.own) for chain in self._chains)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools of the first answered call."""
        return list(self._chains[0].tools.renderer.tools) if self._chains else []

    @property
    def steps(self) -> list[Step]:
        return [
            Step(
                index,
                chain.tools.renderer.text(chain.ids[turn.start : turn.end].tolist()),
                turn.observation or "",
                0.0,
                turn.start,
                turn.end - turn.start,
                turn.truncated,
                round(turn.seconds, 4),
                round(turn.waited, 4),
            )
            for index, (chain, turn) in enumerate(self._turns())
        ]

    def samples(self) -> list[TrainingSample]:
        """Return the training samples in the order of their first calls, and count the others in `dropped`."""
        recorder = SnapshotRecorder()
        last: dict[Chain, CallSnapshot] = {}
        for step, (chain, turn) in enumerate(self._turns()):
            last[chain] = recorder.record(
                chain.ids[: turn.start].tolist(),
                chain.ids[turn.start : turn.end],
                turn.log_probs,
                step=step,
                chain=last.get(chain),
                opening=chain.opening or UNTOUCHED,
            )
        samples, self.dropped = recorder.samples(self._sample_limits)
        return samples

    def _turns(self) -> list[tuple[Chain, Turn]]:
        return sorted(((c, turn) for c in self._chains for turn in c.own), key=lambda found: found[1].number)

    # ---- a call ----

    def _admit(self) -> None:
        self._check_open()
        limits = self._call_limits
        if self._begun - len(self._returned) >= limits.calls:
            raise RequestRefused(403, f"this rollout has had its {limits.calls} calls", "rollout_limit")
        if limits.sampled_tokens is not None and self._sampled >= limits.sampled_tokens:
            text = f"this rollout has had its {limits.sampled_tokens} sampled tokens"
            raise RequestRefused(403, text, "rollout_limit")

    def _check_open(self) -> None:
        if self._closed is not None:
            raise RequestRefused(409, f"this rollout has ended: {self._closed}", "rollout_ended")

    def _begin(self) -> tuple[int, int | None]:
        # The n-th call gets the n-th seed. A failed call returns its seed for the next one.
        if self._returned:
            return heapq.heappop(self._returned)
        self._begun += 1
        return self._begun, None if self._draws is None else self._draws.seed("policy")

    async def _answer(self, request: GatewayRequest, number: int, seed: int | None) -> Completion:
        self.ignored.update(request.ignored)
        tools = self._tools.of(request.tools)
        if not self._openings.asked:
            try:
                await self._openings.ask(request.messages, tools.renderer)
            except ChatTemplateError as error:
                raise invalid(str(error), "messages") from error
        call = self._call(request, number, seed, tools)
        room = self._room(call)
        if call.joins:
            # Both replies would begin at the chain's end, so a concurrent call that continues it must fork.
            call.chain.busy = True
        before = time.perf_counter()
        try:
            generated = await self._sample(call, room)
        finally:
            call.chain.busy = False
        self._failures = 0
        # A refusal does not count as the stop reason if the agent continued, except for the rollout's limits.
        if self.stop_reason is not StopReason.MAX_STEPS:
            self.stop_reason, self.note = None, ""
        return self._record(call, generated, time.perf_counter() - before, room)

    def _call(self, request: GatewayRequest, number: int, seed: int | None, tools: Toolbox) -> _Call:
        """Return a call with its prompt ids, and change nothing yet. Raises RequestRefused."""
        if tools.renderer.overflows(request.messages, self._limits.max_model_len):
            chars = sum([len(message["content"]) for message in request.messages])
            raise _full(f"the messages have {chars} characters, the model has {self._limits.max_model_len} tokens")
        keys = [key_of(message) for message in request.messages]
        try:
            match = find(self._chains, keys, tools)
            if match is None:
                prompt, new, opening = self._openings.begin(request.messages, keys, tools.renderer)
                chain = Chain(tools, opening)
                return _Call(number, seed, request, keys, tools, chain, prompt, None, new, False)
            chain, turn = match.chain, match.turn
            if match.again:
                # The agent retries, or samples a prompt several times: each reply is a chain with the same prompt ids.
                prompt = chain.ids[: turn.start].tolist()
                chain = chain.fork(match.place, turn.start)
                return _Call(number, seed, request, keys, tools, chain, prompt, None, [], False)
            new = [self._openings.shown(message) for message in request.messages[turn.asked + 1 :]]
            added = tools.renderer.continuation(new, closed=turn.closed, calls=turn.calls)
        except ChatTemplateError as error:
            raise invalid(str(error), "messages") from error
        prompt = chain.ids[: turn.end].tolist()
        prompt += added
        # A chain is one sequence of ids, so a call that continues from its middle needs a fork.
        if not match.at_end:
            chain = chain.fork(match.place + 1, turn.end)
        return _Call(number, seed, request, keys, tools, chain, prompt, turn, new, match.at_end)

    def _room(self, call: _Call) -> int:
        """Return the number of tokens to sample. Raises RequestRefused if they do not fit."""
        limits, length = self._limits, len(call.prompt)
        reserve = min(limits.max_new_tokens, call.request.max_tokens or limits.max_new_tokens)
        # Only a chain's first prompt counts as prompt. All later tokens count as response, as in any episode.
        opening = min(call.chain.turns[0].start if call.joins else length, limits.max_prompt_tokens)
        if not self._chains and length > limits.max_prompt_tokens:
            raise _full(
                f"the opening messages have {length} tokens, data.max_prompt_length allows {limits.max_prompt_tokens}"
            )
        if length + reserve > min(limits.max_model_len, opening + limits.max_response_tokens):
            raise _full(f"the messages have {length} tokens, which leaves no room for a reply of {reserve}")
        return reserve

    async def _sample(self, call: _Call, room: int) -> Generated:
        # The rollout may have been closed while the guide was asked.
        self._check_open()
        sampling = {**self._sampling, "max_tokens": room}
        if call.seed is not None:
            sampling["seed"] = call.seed
        if stops := call.tools.renderer.engine_stops:
            sampling["stop_token_ids"] = stops
        if call.request.stop:
            sampling["stop"] = list(call.request.stop)
        if call.request.structure is not None:
            sampling["structured_outputs"] = call.request.structure
        generating = self._engine.generate(self._request_id, list(call.prompt), sampling)
        waiting = asyncio.get_running_loop().create_task(generating, context=self._context.copy())
        self._waiting.add(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            # `close` cancels waiting calls: that is a refusal, not a cancellation of this call.
            self._check_open()
            raise
        except EngineRefused as error:
            param = None if call.request.structure is None else "response_format"
            raise invalid(f"the policy's engine refuses the request: {error}", param) from error
        except EngineError as error:
            raise self._failed(error) from error
        finally:
            waiting.cancel()
            self._waiting.discard(waiting)

    def _failed(self, error: EngineError) -> RequestRefused:
        self._failures += 1
        given_up = self._failures >= self._call_limits.failures
        if given_up:
            self.close(f"the policy's engine failed {self._failures} times: {error}")
        text = f"the policy's engine failed: {error}"
        return RequestRefused(503, text, "engine_failed", retry_s=None if given_up else RETRY_S)

    def _record(self, call: _Call, generated: Generated, seconds: float, room: int) -> Completion:
        ids, renderer, stop = generated.ids, call.tools.renderer, call.request.stop
        parsed = call.tools.read(call.prompt, ids, may_call=call.request.choice.may_call)
        content, stopped_by = parsed.content, None
        ended = renderer.ends_turn(ids) or len(ids) < room
        if cut := [(place, text) for text in stop if (place := content.find(text)) >= 0]:
            place, stopped_by = min(cut)
            content, ended = content[:place], True
        tool_calls = [one.to_openai(call_id(call.number, place)) for place, one in enumerate(parsed.calls)]
        finish: Finish = "tool_calls" if tool_calls else "stop" if ended else "length"
        # Ids keep the text after a stop string: it was sampled, and is trained on.
        start = len(call.prompt)
        completion = Completion(content, tool_calls, finish, start, len(ids), stopped_by)
        turn = Turn(
            call.number,
            start,
            start + len(ids),
            len(call.keys),
            tool_calls,
            renderer.closes_turn(ids, tool_calls),
            _packed(generated.log_probs),
            not ended,
            seconds,
            time.perf_counter(),
        )
        self._grow(call, turn, ids, completion.message)
        self.ignored.update(call.request.choice.missed([one.name for one in parsed.calls]))
        self.problems += bool(parsed.problems)
        self.structured += call.request.structure is not None
        self.versions.update((generated.min_version, generated.max_version))
        self.generate_s += seconds
        self._sampled += len(ids)
        return completion

    def _grow(self, call: _Call, turn: Turn, ids: list[int], reply: Message) -> None:
        chain, after, told = call.chain, call.after, len(call.keys) - len(call.new)
        if after is not None and after.observation is None:
            after.observation = "\n".join([message["content"] for message in call.new])
            after.waited = turn.finished - turn.seconds - after.finished
        if not call.joins:
            if (why := difference(self._chains, call.keys)) is not None:
                self.differences.append(why)
                told = max(told, why.place)
            self._chains.append(chain)
        if not self.opening:
            self.opening = call.request.messages
        self.messages += call.new[len(call.new) - len(call.keys) + told :]
        self.messages.append(reply)
        chain.ids.extend(call.prompt[len(chain.ids) :])
        chain.ids.extend(ids)
        chain.keys += [*call.keys[len(chain.keys) :], key_of(reply)]
        chain.turns.append(turn)


def _packed(log_probs: list[float]) -> array[float]:
    # vLLM's log-probs are 32-bit floats, which need half the memory.
    short = array("f", log_probs)
    return short if short.tolist() == log_probs else array("d", log_probs)


def _full(why: str) -> RequestRefused:
    text = f"This model's maximum context length is exceeded: {why}"
    return RequestRefused(400, text, "context_length_exceeded", "messages")

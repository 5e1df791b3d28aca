"""A rollout behind the gateway: an agent's calls answered by the policy, recorded, and made into training samples.

Calls whose messages go on from one another are one chain of ids: what was sampled keeps its ids, what came since is
rendered on its own and appended, nothing is tokenised a second time. An agent that edits its history, or has agents
below it, makes further chains; one that forks from an earlier call keeps that call's ids.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import orjson

from agentevolver.engine import Engine, EngineError, Generated
from agentevolver.gateway.matching import Chain, Key, Turn, common, find, key_of
from agentevolver.gateway.request import Completion, Finish, Message, Request, RequestRefused, invalid
from agentevolver.tools.formats import ToolFormat
from agentevolver.tools.schema import Parsed, ToolSpec, call_id
from agentevolver.types import Step, StopReason, TrainingSample
from agentevolver.utils import seeds
from context_manager.chat import ChatRenderer, ChatTemplateError
from context_manager.samples import SampleChoice, SampleLimits, SnapshotRecorder, choose
from context_manager.settings import ContextLimits
from experience_manager.guide import Guidance, Injection

# Puts guidance before the task of the first call's messages. Raises nothing but cancellation.
Guide = Callable[[list[Message]], Awaitable[Injection]]
# Characters of a message that are shown where two tellings differ.
SHOWN_CHARS = 80
RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What an agent may ask for: `calls` of a rollout, `sampled_tokens` in all of them together (None: as the context
    has room), and how many times in a row the engine may fail before the rollout ends as `llm_error`."""

    calls: int = 200
    sampled_tokens: int | None = None
    failures: int = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """Why a chain began: the first message that its request has otherwise than the chain that it has most in common
    with. `before` and `after` are `role: text`, cut; empty where one of them ends there."""

    place: int
    before: str
    after: str


@dataclass(slots=True)
class _Prompt:
    """What is sent: `chain` grows by it. `head` are the ids that it is known to begin with on that chain, `new` the
    messages that it adds."""

    chain: Chain
    ids: list[int]
    after: Turn | None
    new: list[Message]
    joins: bool


class GatewayRollout:
    """One rollout; for one event loop. Calls may come at once: each is a turn of its own, numbered as they arrive.

    Args:
        engine: the policy.
        renderer: of the policy's chat template, without tools.
        tool_format: reads calls out of replies; None: requests with tools are refused.
        limits: of tokens, as of any episode.
        sampling_params: of every call, whatever the agent asks for.
        request_id: of every call to the engine.
        guide: puts guidance before the task; the agent never sees it.
        no_think: whether `/no_think` is put after what is not the policy's.
        call_limits: what the agent may ask for.
        max_samples: training samples of the rollout at most; None: one a chain.
        sample_choice: which are kept.

    Attributes:
        opening: the first call's messages, without guidance.
        messages: everything that was said, as it happened, with guidance where there is some; what a further chain
            has in common with an earlier one stands there once.
        versions, generate_s: weight versions that sampled, and seconds that this took.
        injection: what the policy was given before the task, None if nobody was asked.
        dropped: training samples that could not be used, by name; after `samples`.
        ignored: how many requests set a field that has no effect, by its name.
        refused: how many requests were refused, by code.
        differences: why each chain but the first began.
        stop_reason, note: why the last call was not answered (`llm_error`, `context_full`, `max_steps`), None if it
            was.
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
        self.injection: Injection | None = None
        self.dropped: Counter[str] = Counter()
        self.ignored: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.differences: list[Difference] = []
        self.stop_reason: StopReason | None = None
        self.note = ""
        self._engine = engine
        self._renderer = renderer
        self._format = tool_format
        self._limits = limits
        self._sampling = sampling_params
        self._request_id = request_id
        self._guide = guide
        self._no_think = no_think
        self._call_limits = call_limits or CallLimits()
        self._sample_limits = SampleLimits(
            limits.max_prompt_tokens, limits.max_response_tokens, max_samples, sample_choice
        )
        self._draws = seeds.current()
        self._begun = 0
        self._returned: list[tuple[int, int | None]] = []
        self._failures = 0
        self._sampled = 0
        self._chains: list[Chain] = []
        self._texts: dict[int, list[str]] = {}
        self._guiding = asyncio.Lock()
        self._waiting: set[asyncio.Future[Generated]] = set()
        self._closed: str | None = None
        self._remembered: dict[str, list[Message]] = {}

    # ---- what a server calls ----

    async def complete(self, request: Request) -> Completion:
        """Answer a call. Raises RequestRefused, with nothing recorded."""
        try:
            self._admit(request)
            number, seed = self._begin()
            try:
                return await self._answer(request, number, seed)
            except BaseException:
                # Whoever asks next is given the draw, so that an outage changes no reply.
                heapq.heappush(self._returned, (number, seed))
                raise
        except RequestRefused as refusal:
            self.refused[refusal.code] += 1
            raise

    def remember(self, response_id: str, messages: list[Message]) -> None:
        """Keep a conversation under the id of a response, for calls that name it (`previous_response_id`)."""
        self._remembered[response_id] = messages

    def remembered(self, response_id: str) -> list[Message] | None:
        """Return the conversation that a response ended, None if no response of this rollout has that id."""
        return self._remembered.get(response_id)

    @property
    def closed(self) -> bool:
        """Whether calls are refused."""
        return self._closed is not None

    def close(self, reason: str) -> None:
        """End the rollout: calls that wait are refused with the reason, and all that come later."""
        if self._closed is None:
            self._closed = reason
        for waiting in self._waiting:
            waiting.cancel()

    # ---- what a rollout reads ----

    @property
    def chains(self) -> int:
        """How many chains there are; each is a training sample."""
        return len(self._chains)

    @property
    def calls(self) -> int:
        """How many calls were answered."""
        return sum(len(chain.own) for chain in self._chains)

    @property
    def steps(self) -> list[Step]:
        """The calls, in the order in which they came."""
        return [
            Step(
                index,
                turn.text,
                turn.observation or "",
                0.0,
                turn.start,
                turn.end - turn.start,
                turn.truncated,
                round(turn.seconds, 4),
                round(turn.waited, 4),
            )
            for index, turn in enumerate(self._turns())
        ]

    def samples(self) -> list[TrainingSample]:
        """Return the training samples, in the order of their first calls; `dropped` then counts those left out, by
        name."""
        index = {turn.number: place for place, turn in enumerate(self._turns())}
        unbounded = replace(self._sample_limits, max_samples=None)
        made: list[TrainingSample] = []
        self.dropped = Counter()
        for chain in sorted(self._chains, key=lambda one: one.own[0].number):
            recorder, ids = SnapshotRecorder(), chain.ids.tolist()
            for turn in chain.own:
                recorder.record(ids[: turn.start], ids[turn.start : turn.end], turn.log_probs, step=index[turn.number])
            samples, dropped = recorder.samples(unbounded, chain.opening, chain.training)
            made += samples
            self.dropped += dropped
        kept = choose(made, self._sample_limits)
        if len(kept) < len(made):
            self.dropped["over_max_samples"] += len(made) - len(kept)
        counts = [sum(sample.response_mask) for sample in kept]
        return [replace(sample, share=count / sum(counts)) for sample, count in zip(kept, counts, strict=True)]

    def _turns(self) -> list[Turn]:
        return sorted((turn for chain in self._chains for turn in chain.own), key=lambda turn: turn.number)

    # ---- a call ----

    def _admit(self, request: Request) -> None:
        """Refuse a call that is not to be answered whatever it says."""
        self._check_open()
        limits = self._call_limits
        if self._begun - len(self._returned) >= limits.calls:
            raise self._over(f"this rollout has had its {limits.calls} calls")
        if limits.sampled_tokens is not None and self._sampled >= limits.sampled_tokens:
            raise self._over(f"this rollout has had its {limits.sampled_tokens} sampled tokens")
        if request.tools and self._format is None:
            raise invalid(
                "tools are not supported by this run: set actor_rollout_ref.rollout.tool_format to the model's own",
                "tools",
            )
        self.ignored.update(request.ignored)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise RequestRefused(409, f"this rollout has ended: {self._closed}", "rollout_ended")

    def _over(self, why: str) -> RequestRefused:
        self.stop_reason, self.note = StopReason.MAX_STEPS, why
        return RequestRefused(403, why, "rollout_limit")

    def _begin(self) -> tuple[int, int | None]:
        """Return the number of a call and its seed: the n-th call has the n-th draw."""
        if self._returned:
            return heapq.heappop(self._returned)
        self._begun += 1
        return self._begun, None if self._draws is None else self._draws.seed("policy")

    async def _answer(self, request: Request, number: int, seed: int | None) -> Completion:
        tools, specs = _tools(_dumped(request.tools)) if request.tools else (b"", ())
        keys = [key_of(message) for message in request.messages]
        renderer = _for_tools(self._renderer, request.tools)
        try:
            if self._guide is not None and self.injection is None:
                await self._ask_guide(self._guide, request, renderer)
            prompt = self._prompt(request, keys, tools, renderer)
        except ChatTemplateError as error:
            raise invalid(str(error), "messages") from error
        room = self._room(prompt, request)
        prompt.chain.busy = True
        before = time.perf_counter()
        try:
            generated = await self._sample(prompt.ids, request, room, seed)
        finally:
            prompt.chain.busy = False
        self.stop_reason, self.note, self._failures = None, "", 0
        seconds = time.perf_counter() - before
        return self._record(request, keys, specs, prompt, generated, number, seconds, room)

    def _prompt(self, request: Request, keys: list[Key], tools: bytes, renderer: ChatRenderer) -> _Prompt:
        """Return the ids of a request: those of the call that it goes on from, and what came since."""
        match = find(self._chains, keys, tools)
        if match is None:
            return self._opening(request, keys, tools, renderer)
        chain, turn = match.chain, match.chain.turns[match.turn]
        if match.again:
            return _Prompt(_fork(chain, match.turn, turn.start), chain.ids[: turn.start].tolist(), None, [], False)
        new = [self._shown(message) for message in request.messages[turn.asked + 1 :]]
        ids = [*chain.ids[: turn.end], *renderer.continuation(new, closed=turn.closed)]
        if match.turn == len(chain.turns) - 1 and not chain.busy:
            return _Prompt(chain, ids, turn, new, True)
        return _Prompt(_fork(chain, match.turn + 1, turn.end), ids, turn, new, False)

    def _opening(self, request: Request, keys: list[Key], tools: bytes, renderer: ChatRenderer) -> _Prompt:
        """Return the ids of a request that goes on from no call."""
        messages = self._shown_opening(request.messages)
        chain = Chain(tools, [], array("i"))
        injection = self.injection
        if injection is None or not injection.guided or not _begins(keys, injection.plain):
            ids = renderer.opening(messages)
            return _Prompt(chain, ids, None, messages, False)
        guided = self._shown_opening([*injection.messages, *request.messages[len(injection.plain) :]])
        ids = renderer.opening(guided)
        if injection.stripped:
            plain = renderer.opening(messages)
            same = _common_end(ids, plain)
            chain.opening, chain.training = array("i", ids[: len(ids) - same]), array("i", plain[: len(plain) - same])
        return _Prompt(chain, ids, None, guided, False)

    async def _ask_guide(self, guide: Guide, request: Request, renderer: ChatRenderer) -> None:
        async with self._guiding:
            if self.injection is not None:
                return
            opening = [dict(message) for message in request.messages]
            if opening[-1]["role"] != "user":
                self.injection = Injection(
                    opening, opening, Guidance(problem="the first call does not end with a task")
                )
                return
            injection = await guide(opening)
            length = len(renderer.opening(self._shown_opening(injection.messages))) if injection.guided else 0
            if length > self._limits.max_prompt_tokens:
                problem = (
                    f"too long: the opening messages have {length} tokens, data.max_prompt_length allows "
                    f"{self._limits.max_prompt_tokens}"
                )
                injection = Injection(opening, opening, Guidance(problem=problem))
            self.injection = injection

    def _shown_opening(self, messages: Sequence[Message]) -> list[Message]:
        return [*messages[:-1], self._shown(messages[-1])]

    def _shown(self, message: Message) -> Message:
        """Return a message of somebody else's as the policy is shown it."""
        return {**message, "content": f"{message['content']} /no_think"} if self._no_think else message

    def _room(self, prompt: _Prompt, request: Request) -> int:
        """Return how many tokens may be sampled; refused where the reserve of a reply does not fit."""
        limits, length = self._limits, len(prompt.ids)
        reserve = min(limits.max_new_tokens, request.max_tokens or limits.max_new_tokens)
        opening = prompt.chain.turns[0].start if prompt.joins else length
        if not self._chains and length > limits.max_prompt_tokens:
            text = (
                f"the opening messages have {length} tokens, data.max_prompt_length allows {limits.max_prompt_tokens}"
            )
        elif length + reserve > min(
            limits.max_model_len, min(opening, limits.max_prompt_tokens) + limits.max_response_tokens
        ):
            text = f"the messages have {length} tokens, which leaves no room for a reply of {reserve}"
        else:
            return reserve
        self.stop_reason, self.note = StopReason.CONTEXT_FULL, text
        raise RequestRefused(
            400, f"This model's maximum context length is exceeded: {text}", "context_length_exceeded", "messages"
        )

    async def _sample(self, ids: list[int], request: Request, room: int, seed: int | None) -> Generated:
        self._check_open()
        sampling = {**self._sampling, "max_tokens": room}
        if seed is not None:
            sampling["seed"] = seed
        if request.stop:
            sampling["stop"] = list(request.stop)
        if request.structure is not None:
            sampling["structured_outputs"] = request.structure
        waiting = asyncio.ensure_future(self._engine.generate(self._request_id, list(ids), sampling))
        self._waiting.add(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            self._check_open()
            raise
        except EngineError as error:
            raise self._failed(error) from error
        finally:
            waiting.cancel()
            self._waiting.discard(waiting)

    def _failed(self, error: EngineError) -> RequestRefused:
        self._failures += 1
        self.stop_reason, self.note = StopReason.LLM_ERROR, str(error)
        if self._failures >= self._call_limits.failures:
            self.close(f"the policy's engine failed {self._failures} times: {error}")
            return RequestRefused(503, f"the policy's engine failed: {error}", "engine_failed")
        return RequestRefused(503, f"the policy's engine failed: {error}", "engine_failed", retry_s=RETRY_S)

    def _record(
        self,
        request: Request,
        keys: list[Key],
        specs: tuple[ToolSpec, ...],
        prompt: _Prompt,
        generated: Generated,
        number: int,
        seconds: float,
        room: int,
    ) -> Completion:
        """Freeze a reply on its chain, and return it."""
        ids, renderer = generated.ids, self._renderer
        text, parsed = renderer.text(ids), self._parsed(request, specs, ids)
        content = parsed.content if parsed.calls else text
        ended = renderer.ends_turn(ids) or len(ids) < room
        if cut := [place for stop in request.stop if (place := content.find(stop)) >= 0]:
            content, ended = content[: min(cut)], True
        calls = [call.to_openai(call_id(number, place)) for place, call in enumerate(parsed.calls)]
        finish: Finish = "tool_calls" if calls else "stop" if ended else "length"
        completion = Completion(content, calls, finish, len(prompt.ids), len(ids))
        now = time.perf_counter()
        turn = Turn(
            number,
            len(prompt.ids),
            len(prompt.ids) + len(ids),
            len(keys),
            renderer.closes_turn(ids),
            array("d", generated.log_probs),
            text,
            not ended,
            seconds,
            now,
            calls,
        )
        self._grow(request, keys, prompt, turn, [*prompt.ids[len(prompt.chain.ids) :], *ids], completion)
        self.versions.update((generated.min_version, generated.max_version))
        self.generate_s += seconds
        self._sampled += len(ids)
        return completion

    def _parsed(self, request: Request, specs: tuple[ToolSpec, ...], ids: Sequence[int]) -> Parsed:
        if self._format is None or not specs or not request.may_call:
            return Parsed("")
        return self._format.parse(ids, specs)

    def _grow(
        self, request: Request, keys: list[Key], prompt: _Prompt, turn: Turn, ids: list[int], completion: Completion
    ) -> None:
        chain, after = prompt.chain, prompt.after
        if after is not None and after.observation is None:
            after.observation = "\n".join([message["content"] for message in prompt.new])
            after.waited = turn.finished - turn.seconds - after.finished
        told = len(keys) - len(prompt.new)
        if not prompt.joins:
            told = max(told, self._differs(keys))
            self._chains.append(chain)
        if not self.opening:
            self.opening = request.messages
        self.messages += prompt.new[len(prompt.new) - len(keys) + told :]
        self.messages.append(completion.message)
        chain.keys += [*keys[len(chain.keys) :], key_of(completion.message)]
        chain.ids.extend(ids)
        chain.turns.append(turn)

    def _differs(self, keys: list[Key]) -> int:
        """Note why a chain begins, and return how many messages it has in common with an earlier one."""
        if not self._chains:
            return 0
        near = max(self._chains, key=lambda chain: common(keys, chain.keys))
        place = common(keys, near.keys)
        before, after = (_said(one[place]) if place < len(one) else "" for one in (near.keys, keys))
        self.differences.append(Difference(place, before, after))
        return place


def _fork(chain: Chain, turns: int, ids: int) -> Chain:
    """Return a chain that has the first turns of another, and its ids up to there."""
    return Chain(chain.tools, [], chain.ids[:ids], chain.turns[:turns], chain.opening, chain.training, turns)


def _begins(keys: Sequence[Key], opening: Sequence[Message]) -> bool:
    return len(keys) >= len(opening) and all(key_of(m) == key for m, key in zip(opening, keys, strict=False))


def _common_end(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return how many ids two lists end with in common."""
    count, most = 0, min(len(ids), len(others))
    while count < most and ids[-1 - count] == others[-1 - count]:
        count += 1
    return count


def _said(key: Key) -> str:
    role, text, calls = key
    said = f"{text} {', '.join(name for name, _ in calls)}" if calls else text
    return f"{role}: {said[:SHOWN_CHARS]}"


def _for_tools(renderer: ChatRenderer, tools: list[dict[str, Any]]) -> ChatRenderer:
    return cast(ChatRenderer, cast(Any, renderer).for_tools(tools)) if tools else renderer


def _dumped(tools: list[dict[str, Any]]) -> bytes:
    try:
        return orjson.dumps(tools)
    except orjson.JSONEncodeError as error:
        raise invalid(f"tools cannot be written as JSON: {error}", "tools") from error


@lru_cache(maxsize=256)
def _tools(dumped: bytes) -> tuple[bytes, tuple[ToolSpec, ...]]:
    """Return tools as they are written, and read; the schemas are checked once."""
    try:
        return dumped, tuple(ToolSpec.of_openai(tool) for tool in orjson.loads(dumped))
    except ValueError as error:
        raise invalid(str(error), "tools") from error

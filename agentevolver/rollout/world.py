"""The environment as the user's agent sees it: the opening, the tools, and `step`.

`LiveWorld` is the episode on the worker's event loop; an agent in another thread uses it through a `HopWorld` (async)
or a `BlockingWorld`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentevolver.rollout.flows import has_failed
from agentevolver.rollout.tool_calls import ToolUse, check_calls, specs_of
from agentevolver.rollout.tools.schema import Parsed, ParsedCall
from env_service.client import EnvServiceError
from env_service.protocol import Instances

Message = dict[str, Any]
OVER = "The episode is over."
# Messages with more characters are tokenised in a thread.
LONG_CHARS = 16_384


@dataclass(frozen=True, slots=True)
class WorldAnswer:
    """The environment's answer to an action, as text and as messages. `over`: further actions have no effect."""

    text: str
    messages: list[Message]
    reward: float = 0.0
    over: bool = False
    info: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        names = ("text", "messages", "reward", "over", "info")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Event:
    """One step of the environment.

    `calls_before` is the number of model calls answered before it, `tried` the number of calls in its action (None:
    text).
    """

    calls_before: int
    messages: list[Message]
    reward: float
    seconds: float
    tried: int | None = None
    problems: tuple[str, ...] = ()
    refused: bool = False

    @property
    def observation(self) -> str:
        return "\n".join(message["content"] for message in self.messages)


@dataclass(slots=True)
class LiveWorld:
    """One episode's environment, for one event loop.

    Without `tools` actions are texts. `calls` returns the number of answered model calls. `failure` is the
    environment's error, or None.
    """

    client: Instances
    instance_id: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    max_steps: int
    clip: Callable[[str], str]
    calls: Callable[[], int]
    env_type: str = ""
    tool_use: ToolUse | None = None
    events: list[Event] = field(default_factory=list)
    failure: EnvServiceError | None = None
    terminated: bool = False
    _acted: int = 0
    _sent: int = 0
    _closed: bool = False
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def exhausted(self) -> bool:
        return self._acted >= self.max_steps

    @property
    def over(self) -> bool:
        return self.terminated or self.exhausted

    def close(self) -> None:
        self._closed = True

    async def step(self, action: str | Mapping[str, Any]) -> WorldAnswer:
        """Carry out an action, a text or an assistant message of OpenAI's form; concurrent steps are serialised.

        Raises:
            EnvServiceError: the environment failed; the rollout ends as `env_error`.
            ValueError: the action is invalid.
            RuntimeError: the rollout has ended.
        """
        async with self._lock:
            if self._closed:
                raise RuntimeError("this rollout has ended: its environment takes no further action")
            if self.failure is not None:
                raise self.failure
            content, calls = _read(action)
            if self.over:
                return WorldAnswer(OVER, _each(calls, OVER) or [{"role": "user", "content": OVER}], over=True)
            if calls and not self.tools:
                raise ValueError(
                    "the message calls tools, and the environment takes texts in this run: set "
                    "actor_rollout_ref.rollout.tool_format, or give step the text"
                )
            self._acted += 1
            started = time.perf_counter()
            try:
                return await self._carry_out(content, calls, started)
            except EnvServiceError as error:
                self.failure = error
                raise

    async def _carry_out(self, content: str | None, calls: list[Message], started: float) -> WorldAnswer:
        before = self.calls()
        if not self.tools:
            result = await self._send({"role": "assistant", "content": content or ""})
            return await self._answer(result, result["state"], before, started)
        parsed = Parsed(
            content or "", tuple(ParsedCall(c["function"]["name"], c["function"]["arguments"]) for c in calls)
        )
        reply = check_calls(parsed, specs_of(self.tools, self.env_type), self.tool_use or ToolUse(None), self._acted)
        told = {checked.id: call["id"] for checked, call in zip(reply.calls, calls, strict=False)}
        if calls and not reply.valid:
            unsent = {"reward": 0.0, "is_terminated": False, "info": {}, "unsent": True}
            result, state = unsent, reply.answers([])
        else:
            result = await self._send(reply.action(content or ""))
            state = reply.answers(result["state"])
        state = [
            {**message, "tool_call_id": told[message["tool_call_id"]]}
            if message.get("tool_call_id") in told
            else message
            for message in state
        ]
        return await self._answer(result, state, before, started, reply.tried, reply.problems)

    async def _send(self, message: Message) -> Mapping[str, Any]:
        sent, self._sent = self._sent, self._sent + 1
        result: Mapping[str, Any] = await self.client.step(self.instance_id, message, step_index=sent)
        return result

    async def _answer(
        self,
        result: Mapping[str, Any],
        state: Sequence[Mapping[str, Any]],
        before: int,
        started: float,
        tried: int | None = None,
        problems: tuple[str, ...] = (),
    ) -> WorldAnswer:
        texts = await off_loop(lambda given: [self.clip(str(one.get("content") or "")) for one in given], state)
        messages = [{**message, "content": text} for message, text in zip(state, texts, strict=True)]
        info = dict(result.get("info") or {})
        if info.get("tools"):
            self.tools = list(info["tools"])
        self.terminated = bool(result["is_terminated"])
        seconds, reward = time.perf_counter() - started, float(result["reward"])
        event = Event(before, messages, reward, seconds, tried, problems)
        refused = result.get("unsent", False) or has_failed("" if problems else event.observation, info)
        event = replace(event, refused=refused)
        self.events.append(event)
        return WorldAnswer(event.observation, messages, reward, self.over, info)


async def off_loop(work: Callable[[Any], Any], messages: Sequence[Mapping[str, Any]]) -> Any:
    """Call a function of messages, in a thread if they are long: other rollouts share this event loop."""
    if sum(len(str(message.get("content") or "")) for message in messages) > LONG_CHARS:
        return await asyncio.to_thread(work, messages)
    return work(messages)


@dataclass(frozen=True, slots=True)
class _World:
    _live: LiveWorld = field(repr=False)
    _home: asyncio.AbstractEventLoop = field(repr=False)

    @property
    def messages(self) -> list[Message]:
        return [dict(message) for message in self._live.messages]

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The callable tools in OpenAI's form; empty if actions are texts."""
        return list(self._live.tools)


class HopWorld(_World):
    """The environment for an async agent."""

    async def step(self, action: str | Mapping[str, Any]) -> WorldAnswer:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._live.step(action), self._home))


class BlockingWorld(_World):
    """The environment for a blocking agent."""

    def step(self, action: str | Mapping[str, Any]) -> WorldAnswer:
        """Carry out an action: a text, or an assistant message with `tool_calls`."""
        return asyncio.run_coroutine_threadsafe(self._live.step(action), self._home).result()


def _read(action: str | Mapping[str, Any]) -> tuple[str | None, list[Message]]:
    if isinstance(action, str):
        return action, []
    if not isinstance(action, Mapping):
        raise ValueError(
            f"an action is a text or an assistant message of OpenAI's as a mapping, not a {type(action).__name__}; for "
            "an object of the SDK pass message.model_dump()"
        )
    content, calls = action.get("content"), action.get("tool_calls") or []
    if not isinstance(content, str | None):
        raise ValueError(f"the content of an action is a text or null, not a {type(content).__name__}")
    made = []
    for place, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError(f"tool_calls[{place}] of the action names no function")
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            raise ValueError(f"tool_calls[{place}] of the action: arguments must be JSON text")
        made.append(
            {
                "id": str(call.get("id") or f"call{place:05d}"),
                "type": "function",
                "function": {"name": function["name"], "arguments": arguments},
            }
        )
    return content, made


def _each(calls: list[Message], text: str) -> list[Message]:
    return [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": text}
        for call in calls
    ]

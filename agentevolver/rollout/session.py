"""A session in an environment: asks the policy, carries out its actions, and records every call as a step.

Plans, summaries and context decisions are steps too, so each sampled token belongs to a step. With native tool calls
the environment gets the valid calls, and the session answers the others.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from agentevolver.rollout.engine import Engine, EngineError, Generated
from agentevolver.rollout.flows import Answer, has_failed
from agentevolver.rollout.policy import ChatEngine, Summariser
from agentevolver.rollout.tool_calls import ToolReply, ToolsMissing, ToolUse, check_calls, read_tools, specs_of
from agentevolver.rollout.tools.reply import END_THINK, begins_in_thought
from agentevolver.rollout.tools.schema import Parsed, ToolSpec
from agentevolver.rollout.world import off_loop
from agentevolver.types import Step
from agentevolver.utils import seeds
from context_manager.template import ContextTemplate, SideCall
from env_service.client import EnvServiceError
from env_service.protocol import Instances

T = TypeVar("T")
Message = dict[str, Any]

# More calls than any template needs before one prompt. The limit stops a template that would never let the policy act.
MAX_SIDE_CALLS = 8


@dataclass(slots=True)
class LiveSession:
    """One episode on one instance.

    `shown` transforms messages that are not the policy's (`/no_think`). Without `tool_use` every reply is an action.
    `actions` counts the episode's actions, `sent` those that reached the environment.
    """

    context: ContextTemplate
    engine: Engine | ChatEngine
    client: Instances
    env_type: str
    instance_id: str
    sampling_params: dict[str, Any]
    max_steps: int
    shown: Callable[[Message], Message]
    summariser: Summariser | None = None
    tool_use: ToolUse | None = None
    steps: list[Step] = field(default_factory=list)
    actions: int = 0
    sent: int = 0
    versions: set[int] = field(default_factory=set)
    generate_s: float = 0.0
    env_s: float = 0.0
    _said: Step | None = None
    _sampled: Sequence[int] = ()
    _inside: bool = False
    _called: Parsed | None = None
    _specs: tuple[ToolSpec, ...] = ()
    offered: list[Message] = field(default_factory=list)

    def offer(self, info: Mapping[str, Any] | None) -> None:
        """Take the environment's tools, before the context starts. Raises EnvServiceError if there are none."""
        if self.tool_use is None:
            return
        try:
            self.offered = read_tools(info, self.env_type)
            self._specs = specs_of(self.offered, self.env_type)
        except ToolsMissing as error:
            raise EnvServiceError(str(error), url="/create", instance_id=self.instance_id) from error
        self.context.offer(self.offered)

    def _take_tools(self, info: Mapping[str, Any]) -> None:
        if self.tool_use is None or info.get("tools") is None:
            return
        try:
            # Later calls are checked against the new tools. The prompt keeps the first ones.
            self._specs = specs_of(info["tools"], self.env_type)
        except ToolsMissing as error:
            raise EnvServiceError(str(error), url="/step", instance_id=self.instance_id) from error

    async def ask(self, kind: str = "action") -> str:
        self._close_step()
        await self._keep_house()
        prompt_ids = self.context.next_prompt()
        index, length, self._inside = len(self.steps), len(prompt_ids), self._opens_thought(prompt_ids)
        generated, seconds = await self._sample(
            prompt_ids, self.context.chat, self.context.limits.max_new_tokens, self.offered
        )
        text = self.context.record(generated.ids, generated.log_probs, index, kind)
        self._sampled = generated.ids
        self._said = self._step(index, kind, text, length, generated.ids, seconds)
        return text

    async def act(self, text: str) -> Answer:
        if self._said is None:
            raise RuntimeError(
                "a flow must `ask` before each `act`: an action that the policy did not sample cannot be trained on"
            )
        before = self.env_s
        reply = self._read(text)
        state: list[Message] = []
        reward, over, info = 0.0, False, dict[str, Any]()
        # Without a valid call the action still counts, but the environment is not called.
        sent = reply.is_text or bool(reply.valid)
        if sent:
            action = reply.action(self.context.action(reply.content))
            result = await self.timed(self.client.step(self.instance_id, action, step_index=self.sent))
            self.sent += 1
            state, reward, over = result["state"], float(result["reward"]), bool(result["is_terminated"])
            info = result.get("info") or {}
            self._take_tools(info)
        self.actions += 1
        observation = await off_loop(self.context.observe, self._answers(reply, state))
        # Beside an invalid call, whose problem the observation quotes, only `info` tells of the valid ones.
        refused = not sent or has_failed("" if reply.problems else observation, info)
        env_s = round(self.env_s - before, 4)
        self._said = replace(self._said, observation=observation, reward=reward, env_s=env_s, refused=refused)
        self._close_step()
        return Answer(observation, reward, over, refused or bool(reply.problems))

    def _read(self, text: str) -> ToolReply:
        if self.tool_use is None or self._said is None:
            return ToolReply(text)
        parsed = self._called
        if parsed is None:
            if self.tool_use.format is None:
                raise RuntimeError("a policy's calls need a tool format, and there is none")
            if self._inside and END_THINK not in self.context.renderer.raw_text(self._sampled):
                # A thought that was cut off contains no calls.
                self._said = replace(self._said, calls=0)
                return ToolReply(text)
            parsed = self.tool_use.format.parse(self._sampled, self._specs)
        reply = check_calls(parsed, self._specs, self.tool_use, self._said.index)
        self._said = replace(self._said, calls=reply.tried, problems=reply.problems)
        if reply.is_text:
            # Keep the original text, unless the format removed something.
            return ToolReply(text) if parsed.content.strip() == text.strip() else reply
        if reply.calls:
            self.context.called([one.to_openai() for one in reply.calls], reply.content)
        return reply

    def _opens_thought(self, prompt_ids: Sequence[int]) -> bool:
        if self.tool_use is None or self.tool_use.format is None:
            return False
        return begins_in_thought(self.context.renderer, prompt_ids)

    def _answers(self, reply: ToolReply, state: Sequence[Message]) -> list[Message]:
        if reply.is_text:
            return [self.shown(answer) for answer in state]
        try:
            *others, last = reply.answers(state)
        except ValueError as error:
            raise EnvServiceError(str(error), url="/step", instance_id=self.instance_id) from error
        return [*others, self.shown(last)]

    def tell(self, text: str) -> None:
        self.context.tell(str(self.shown({"role": "user", "content": text})["content"]))

    def pin(self) -> None:
        self.context.pin()

    def close(self) -> None:
        """Close the last step if the policy did not act after its reply."""
        self._close_step()

    async def timed(self, call: Awaitable[T]) -> T:
        before = time.perf_counter()
        try:
            return await call
        finally:
            self.env_s += time.perf_counter() - before

    async def _keep_house(self) -> None:
        for _ in range(MAX_SIDE_CALLS):
            call = self.context.housekeeping()
            if call is None:
                return
            await self._side_call(call)
        raise RuntimeError(
            f"{type(self.context).__name__}.housekeeping requested {MAX_SIDE_CALLS} side calls in a row: it must "
            "return None when it is done"
        )

    async def _side_call(self, call: SideCall) -> None:
        if call.by == "summariser":
            if self.summariser is None:
                raise RuntimeError(
                    "the context needs a summary by the summariser, but no model is configured for that role"
                )
            self.context.settle(call, await self.summariser(call.messages, call.max_new_tokens))
            return
        generated, seconds = await self._sample(list(call.prompt_ids), lambda: call.messages, call.max_new_tokens)
        index = len(self.steps)
        text = self.context.answer(call, generated.ids, generated.log_probs, index)
        self.steps.append(self._step(index, call.kind, text, len(call.prompt_ids), generated.ids, seconds))

    async def _sample(
        self,
        prompt_ids: list[int],
        messages: Callable[[], list[Message]],
        max_new_tokens: int,
        tools: Sequence[Message] = (),
    ) -> tuple[Generated, float]:
        room = min(max_new_tokens, self.context.limits.max_model_len - len(prompt_ids))
        sampling = {**self.sampling_params, "max_tokens": room}
        before = time.perf_counter()
        if isinstance(self.engine, ChatEngine):
            generated = await self._converse(self.engine, messages(), sampling, tools)
        else:
            if stops := self.context.renderer.engine_stops:
                sampling["stop_token_ids"] = sorted({*stops, *(sampling.get("stop_token_ids") or ())})
            if (draws := seeds.current()) is not None:
                sampling["seed"] = draws.seed("policy")
            generated = await self.engine.generate(self.instance_id, prompt_ids, sampling)
            self.versions.update((generated.min_version, generated.max_version))
        seconds = time.perf_counter() - before
        self.generate_s += seconds
        return generated, seconds

    async def _converse(
        self, engine: ChatEngine, messages: list[Message], sampling: dict[str, Any], tools: Sequence[Message]
    ) -> Generated:
        offered = {"tools": list(tools)} if tools else {}
        said = await engine.converse(self.instance_id, messages, sampling, **offered)
        self._called = Parsed(said.text, said.calls)
        renderer = self.context.renderer
        # JSON may hold a lone surrogate, which cannot be encoded.
        ids = [
            *renderer.encode(said.written.encode("utf-8", "replace").decode()),
            *([] if said.truncated else [renderer.end_id]),
        ]
        if not ids:
            raise EngineError("the model's reply was cut before its first word")
        return Generated(ids, [0.0] * len(ids), 0, 0)

    def _step(self, index: int, kind: str, text: str, prompt_tokens: int, ids: Sequence[int], seconds: float) -> Step:
        truncated = not self.context.renderer.ends_turn(ids)
        return Step(index, text, "", 0.0, prompt_tokens, len(ids), truncated, round(seconds, 4), 0.0, kind)

    def _close_step(self) -> None:
        if self._said is not None:
            self.steps.append(self._said)
            self._said = None

"""Actor: asks a role's model for the next action, and asks again while the reply is unusable."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from agentevolver.llm.asking import Asker, Prompt
from agentevolver.llm.errors import LLMReply, LLMReplyError
from agentevolver.llm.prompts import Messages
from agentevolver.llm.settings import Role
from task_manager.actions import PlainFormat
from task_manager.replies import ActReply, NoAction, ParsedAction, as_action, read_action
from task_manager.settings import ReplyFormat

# Unusable replies before the step fails. Cached ones do not count: after a resume the cache replays them for free.
TRIES = 2
# Limit on all replies, so that a cache full of unusable ones cannot loop for long.
MOST_REPLIES = 8

_AGAIN = "Your reply cannot be used: {problem}. Reply again, with your next message alone."
_UNNAMEABLE = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class ToolSchemas:
    """Tool schemas in the form that endpoints accept; `names` maps them back to the environment's names."""

    schemas: list[dict[str, Any]]
    names: dict[str, str]

    @classmethod
    def of(cls, told: Any) -> Self | None:
        """Parse an environment's tool description; None if it holds no usable schema."""
        if isinstance(told, dict):
            told = told.get("tools")
        schemas, names = [], {}
        for item in told if isinstance(told, list) else ():
            function = item.get("function", item) if isinstance(item, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                continue
            # OpenAI-compatible endpoints reject names with dots or more than 64 characters.
            sent = _UNNAMEABLE.sub("_", function["name"])[:64]
            names[sent] = function["name"]
            parameters = function.get("parameters") or {"type": "object", "properties": {}}
            described = {"name": sent, "description": str(function.get("description", "")), "parameters": parameters}
            schemas.append({"type": "function", "function": described})
        return cls(schemas, names) if schemas else None

    def renamed(self, reply: LLMReply) -> LLMReply:
        calls = tuple(replace(call, name=self.names.get(call.name, call.name)) for call in reply.tool_calls)
        return replace(reply, tool_calls=calls)


class Actor:
    def __init__(self, asker: Asker, role: Role, fmt: PlainFormat, reply_format: ReplyFormat) -> None:
        self._asker = asker
        self._role = role
        self._format = fmt
        self._reply_format = reply_format

    async def next(
        self,
        prompt: Prompt,
        *,
        opening: str,
        tools: ToolSchemas | None = None,
        may_close: bool = True,
        refuse: Callable[[str], str | None] = lambda action: None,
        seed: int = 0,
        **sampling: Any,
    ) -> ParsedAction:
        """Return the next action; raises LLMReplyError if no reply holds a usable one.

        Args:
            opening: the environment's first message; shows whether its messages contain code fences.
            may_close: whether the role may end the episode at once. If not, it must choose so twice.
            refuse: returns why an action must not be taken, or None if it may.
            seed: of the first reply; each retry increments it.
        """
        # A fence is then part of an action, and not a wrapper that a model put around it.
        fenced = "```" in opening or "```" in (self._format.closing(None) or "")
        said, problem, useless = "", "", 0
        for number in range(MOST_REPLIES):
            reply = await self._reply(_after(prompt, said, problem), tools, {**sampling, "seed": seed + number})
            try:
                action = self._read(reply, tools, fenced=fenced)
            except NoAction as error:
                problem = str(error)
            else:
                if not may_close and self._format.answer_of(action.action) is not None:
                    may_close = True
                    problem = "it would end the episode, which is to go on; choose another action"
                elif (found := refuse(action.action)) is not None:
                    problem = found
                else:
                    return action
            said = _said(reply)
            useless += not (isinstance(reply, LLMReply) and reply.cached)
            if useless >= TRIES:
                break
        raise LLMReplyError(f"{self._role.value}: no usable action in {number + 1} replies: {problem}", said)

    async def _reply(
        self, prompt: Prompt, tools: ToolSchemas | None, sampling: dict[str, Any]
    ) -> LLMReply | ActReply | LLMReplyError:
        try:
            if self._reply_format != "json":
                return await self._asker.chat(
                    self._role, prompt, tools.schemas if tools is not None else None, **sampling
                )
            return await self._asker.structured(self._role, prompt, ActReply, **sampling)
        except LLMReplyError as error:
            return error

    def _read(
        self, reply: LLMReply | ActReply | LLMReplyError, tools: ToolSchemas | None, *, fenced: bool
    ) -> ParsedAction:
        if isinstance(reply, LLMReplyError):
            raise NoAction(str(reply))
        if isinstance(reply, ActReply):
            return ParsedAction(as_action(reply.action, self._format), reply.thought)
        return read_action(reply if tools is None else tools.renamed(reply), self._format, fenced=fenced)


def _after(prompt: Prompt, said: str, problem: str) -> Prompt:
    if not problem:
        return prompt

    def made(room: int | None) -> Messages:
        again = [
            {"role": "assistant", "content": said or "(nothing)"},
            {"role": "user", "content": _AGAIN.format(problem=problem)},
        ]
        return [*prompt(None if room is None else room - sum(len(message["content"]) for message in again)), *again]

    return made


def _said(reply: LLMReply | ActReply | LLMReplyError) -> str:
    if isinstance(reply, ActReply):
        return reply.action
    if isinstance(reply, LLMReplyError):
        return reply.text
    calls = [
        json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False) for call in reply.tool_calls
    ]
    return "\n".join([*filter(None, [reply.text]), *calls])[:4_000]

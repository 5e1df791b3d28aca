"""The users that the agent talks to: a language model, as in the benchmark, or a script for tests.

A user answers with a message, or with calls of its own tools (telecom: its phone). `###STOP###`, `###TRANSFER###` or
`###OUT-OF-SCOPE###` in its message end the episode.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from env_service.chat_endpoint import EndpointFailed, complete
from env_service.environments.tau2.package import Domain, prompt, user_guidelines
from env_service.environments.tau2.prompts import GREETING, OUT_OF_SCOPE, STOP, TRANSFER
from env_service.tool_calls import ToolCall, structured_calls

USERS = ("scripted", "llm", "solo")
MOST_CALLS = 20
"""Times that a user may call its tools before it has to speak."""


class UserFailed(RuntimeError):
    """The user gave no reply, so the episode has no grade."""


@dataclass(frozen=True, slots=True)
class UserTurn:
    """A user's message (`content`), or its calls of tools."""

    content: str = ""
    calls: tuple[ToolCall, ...] = ()

    @property
    def ends(self) -> bool:
        return not self.calls and any(token in self.content for token in (STOP, TRANSFER, OUT_OF_SCOPE))


class User(Protocol):
    def hears(self, said: str) -> UserTurn:
        """Answer the agent's message, at first its greeting. Raises UserFailed."""

    def sees(self, results: Sequence[str]) -> UserTurn:
        """Continue after the results of the last turn's calls. Raises UserFailed."""


@dataclass
class ScriptedUser:
    """States the task's request, then one known fact for each message of the agent, agrees once, and stops. It uses its
    tools as a message tells it to: `toggle_data`, or `set_wifi_calling({"enabled": false})`.

    For tests and for runs without a language model. It understands nothing, so its scores are no results of the
    benchmark.
    """

    task: Any
    tools: frozenset[str]
    _lines: list[str] | None = None
    _asked: tuple[ToolCall, ...] = ()
    _agreed: bool = False

    def hears(self, said: str) -> UserTurn:
        if self._lines is None:
            request, *self._lines = _lines_of(self.task)
            return UserTurn(request)
        if "transferred to a human" in said.casefold():
            return UserTurn(TRANSFER)
        self._asked = tuple(self._calls_in(said))
        if self._asked:
            return UserTurn(calls=self._asked)
        if self._lines:
            return UserTurn(self._lines.pop(0))
        if not self._agreed:
            self._agreed = True
            return UserTurn("Yes, please go ahead.")
        return UserTurn(STOP)

    def sees(self, results: Sequence[str]) -> UserTurn:
        names = (call.name for call in self._asked)
        return UserTurn("\n".join(f"{name}: {result}" for name, result in zip(names, results, strict=True)))

    def _calls_in(self, said: str) -> list[ToolCall]:
        calls: list[ToolCall] = []
        for match in re.finditer(r"\b([a-z]+(?:_[a-z]+)+)\b", said):
            if match[1] not in self.tools or len(calls) == MOST_CALLS:
                continue
            arguments: Any = {}
            if said.startswith("(", match.end()):
                try:
                    arguments, _ = json.JSONDecoder().raw_decode(said, match.end() + 1)
                except (ValueError, RecursionError):
                    arguments = {}
            calls.append(ToolCall(match[1], arguments if isinstance(arguments, dict) else {}))
        return calls


@dataclass
class LlmUser:
    """A language model with the benchmark's guidelines, the task's scenario and, in telecom, the phone's tools."""

    endpoint: UserEndpoint
    system: str
    tools: tuple[dict[str, Any], ...]
    _messages: list[dict[str, Any]] = field(default_factory=list)
    _asked: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, domain: Domain, task: Any, endpoint: UserEndpoint) -> LlmUser:
        guidelines = user_guidelines(with_tools=bool(domain.user_schemas))
        system = prompt("SYSTEM_PROMPT", "user/user_simulator.py").format(
            global_user_sim_guidelines=guidelines, instructions=str(task.user_scenario)
        )
        return cls(endpoint, system, domain.user_schemas)

    def hears(self, said: str) -> UserTurn:
        self._messages.append({"role": "user", "content": said})
        return self._speak()

    def sees(self, results: Sequence[str]) -> UserTurn:
        for name, result in zip(self._asked, results, strict=True):
            self._messages.append({"role": "tool", "tool_call_id": name, "content": result})
        return self._speak()

    def _speak(self) -> UserTurn:
        said = self.endpoint.reply([{"role": "system", "content": self.system}, *self._messages], self.tools)
        calls = [call for call in structured_calls(said) if isinstance(call, ToolCall)][:MOST_CALLS]
        content = str(said.get("content") or "").rpartition("</think>")[2].strip()
        if not calls and not content:
            raise UserFailed("the language model that plays the user (ENV_TAU2_USER_URL) said nothing")
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            self._asked = [call.id or f"user_{len(self._messages)}_{i}" for i, call in enumerate(calls)]
            message["tool_calls"] = [
                {
                    "id": name,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                }
                for name, call in zip(self._asked, calls, strict=True)
            ]
        self._messages.append(message)
        return UserTurn(content, tuple(calls))


@dataclass(frozen=True)
class UserEndpoint:
    """Endpoint of the model that plays users. The key never appears in a repr or an error."""

    url: str
    model: str
    key: str | None = field(default=None, repr=False)

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> UserEndpoint:
        source = os.environ if environ is None else environ
        url, model = source.get("ENV_TAU2_USER_URL"), source.get("ENV_TAU2_USER_MODEL")
        if not url or not model:
            raise ValueError(
                "user=llm needs ENV_TAU2_USER_URL (up to /v1) and ENV_TAU2_USER_MODEL where the service starts, and "
                "ENV_TAU2_USER_KEY with --pass-env ENV_TAU2_USER_KEY if the model asks for a key"
            )
        return cls(url.rstrip("/"), model, source.get("ENV_TAU2_USER_KEY"))

    def reply(self, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the model's message; raises UserFailed."""
        body: dict[str, Any] = {"model": self.model, "temperature": 0, "messages": messages}
        if tools:
            body["tools"] = list(tools)
        try:
            return complete(self.url, self.key, body)
        except EndpointFailed as error:
            raise UserFailed(f"the model {self.model!r} at {self.url} that plays the user failed: {error}") from error


def user_of(kind: str, domain: Domain, task: Any) -> User | None:
    """Return the user of an episode, or None if `kind` is `solo`. Raises ValueError if the kind is unknown."""
    if kind not in USERS:
        raise ValueError(f"parameter user={kind!r} is not one of {', '.join(USERS)}")
    if kind == "solo":
        if domain.solo_policy is None or task.ticket is None:
            raise ValueError(
                f"user=solo is for tasks with a ticket, all of telecom's; those of {domain.name} need a user. "
                "`domains: [telecom]` lists no others"
            )
        return None
    if kind == "llm":
        return LlmUser.of(domain, task, UserEndpoint.read())
    names = frozenset(schema["function"]["name"] for schema in domain.user_schemas)
    return ScriptedUser(task, names)


def first_message(user: User) -> str:
    """Return a user's answer to the greeting; raises UserFailed if it is not a message."""
    turn = user.hears(GREETING)
    if turn.calls:
        raise UserFailed("the user called tools before it had said what it wants")
    return turn.content


def _lines_of(task: Any) -> list[str]:
    """Return a scripted user's lines in order; the first is the request."""
    told = task.user_scenario.instructions
    if isinstance(told, str):
        return [told]
    parts = (told.known_info, told.unknown_info, told.task_instructions)
    lines = [line.strip() for part in parts for line in (part or "").splitlines()]
    return [told.reason_for_call.strip(), *filter(None, lines)]

"""Checks of a reply's calls before an environment sees them.

Every call has an id and is answered once, in order: by the environment, or here if it is invalid. A malformed call is
answered by a user message.
"""

from __future__ import annotations

import functools
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentevolver.rollout.tools.schema import Parsed, ParsedCall, ToolFormat, ToolSpec, call_id, find_tool
from agentevolver.utils.names import did_you_mean

Message = dict[str, Any]
logger = logging.getLogger(__name__)

# Kinds of problems with a call, also the names of the metrics `rollout/tool_problems/<kind>`.
PROBLEMS = ("unknown_tool", "bad_json", "bad_arguments", "too_many", "broken")
# Ids of a reply's calls are unique up to this number (`schema.call_id`).
MAX_READ = 1000
# Characters of a quoted problem: a schema's message may quote all the arguments.
_QUOTED = 300
# Tools that are named where none is like the one that was called.
_LISTED = 30


class ToolsMissing(ValueError):
    """An environment offers no usable tools; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The format of the policy's tool calls, and the maximum number of calls executed from one reply.

    `format` is None if the policy is a chat model, whose endpoint returns calls separately.
    """

    format: ToolFormat | None
    max_calls: int = 8

    @property
    def ends(self) -> tuple[int, ...]:
        """Token ids that end a reply, besides the tokenizer's eos."""
        return () if self.format is None else self.format.stop_token_ids


@dataclass(frozen=True, slots=True)
class Checked:
    """A call with its id. `problem` is one of `PROBLEMS` or ""; `answer` is the error text for the agent."""

    id: str
    call: ParsedCall
    problem: str = ""
    answer: str = ""

    def to_openai(self) -> Message:
        return self.call.to_openai(self.id)

    def answered(self) -> Message:
        return {"role": "tool", "tool_call_id": self.id, "name": self.call.name, "content": self.answer}


@dataclass(frozen=True, slots=True)
class ToolReply:
    """A parsed reply: its text, its calls in order, and an answer to each malformed call."""

    content: str
    calls: tuple[Checked, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def valid(self) -> tuple[Checked, ...]:
        return tuple(one for one in self.calls if not one.problem)

    @property
    def is_text(self) -> bool:
        """Whether it has no calls, not even malformed ones."""
        return not self.calls and not self.broken

    @property
    def problems(self) -> tuple[str, ...]:
        return (*(one.problem for one in self.calls if one.problem), *("broken" for _ in self.broken))

    @property
    def tried(self) -> int:
        """Number of calls, malformed ones included."""
        return len(self.calls) + len(self.broken)

    def action(self, content: str) -> Message:
        """Return the environment's action: the valid calls, with `content` beside them."""
        if not self.valid:
            return {"role": "assistant", "content": content}
        calls = [one.to_openai() for one in self.valid]
        return {"role": "assistant", "content": content if content.strip() else None, "tool_calls": calls}

    def answers(self, state: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Return one answer per call in order, then the other messages of the environment's `state`.

        Raises ValueError if the environment did not answer each valid call once.
        """
        given = [message for message in state if message.get("role") == "tool"]
        wanted, found = [one.id for one in self.valid], [message.get("tool_call_id") for message in given]
        if Counter(wanted) != Counter(found):
            raise ValueError(
                f"the environment must answer each call once: its calls were {wanted}, its answers {found}"
            )
        by_id = {message["tool_call_id"]: dict(message) for message in given}
        answers = [one.answered() if one.problem else by_id[one.id] for one in self.calls]
        rest = [dict(message) for message in state if message.get("role") != "tool"]
        if self.broken:
            words = "\n".join(self.broken)
            if rest and rest[0].get("role") == "user":
                rest[0]["content"] = f"{words}\n\n{rest[0]['content']}"
            else:
                rest.insert(0, {"role": "user", "content": words})
        return [*answers, *rest]


def check_calls(parsed: Parsed, tools: Sequence[ToolSpec], use: ToolUse, turn: int) -> ToolReply:
    """Check a reply's calls against the tools. `turn` is the reply's index in its episode and part of the call ids."""
    read = parsed.calls[:MAX_READ]
    calls = tuple(_check(place, call, tools, use, turn) for place, call in enumerate(read))
    broken = [f"error: {_clean(problem)}" for problem in parsed.problems]
    if len(parsed.calls) > MAX_READ:
        broken.append(f"error: only the first {MAX_READ} of {len(parsed.calls)} calls were read")
    return ToolReply(parsed.content, calls, tuple(broken))


def read_tools(info: Mapping[str, Any] | None, env_type: str) -> list[Message]:
    """Return the environment's tools (`info["tools"]`) in OpenAI's form. Raises ToolsMissing."""
    tools = (info or {}).get("tools")
    if not tools:
        raise ToolsMissing(no_tools(env_type))
    return [_whole(tool, spec) for tool, spec in _usable(tools, env_type)]


def no_tools(env_type: str) -> str:
    return (
        f"the environment {env_type!r} lists no tools at the start of an episode (info.tools), so its agents cannot "
        "call them natively: set actor_rollout_ref.rollout.tool_format to none"
    )


def specs_of(tools: Any, env_type: str) -> tuple[ToolSpec, ...]:
    """Return the specs of the usable tools. Raises ToolsMissing if there are none, or for duplicate names."""
    return tuple(spec for _, spec in _usable(tools, env_type))


def _usable(tools: Any, env_type: str) -> list[tuple[Mapping[str, Any], ToolSpec]]:
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise ToolsMissing(f"the environment {env_type!r} gives info.tools that are not a list of tools")
    read = [(tool, _spec(json.dumps(tool, sort_keys=True, default=str))) for tool in tools]
    usable = [(tool, spec) for tool, spec in read if isinstance(spec, ToolSpec)]
    if tools and not usable:
        raise ToolsMissing(f"the environment {env_type!r} lists no tool that can be used: {[why for _, why in read]}")
    twice = [name for name, count in Counter(spec.name for _, spec in usable).items() if count > 1]
    if twice:
        raise ToolsMissing(f"the environment {env_type!r} lists two tools of the name {twice[0]!r}")
    return usable


def _whole(tool: Mapping[str, Any], spec: ToolSpec) -> Message:
    # gpt-oss' chat template needs description and parameters, even if they are empty.
    return {**tool, "function": {**spec.to_openai()["function"], **tool["function"]}}


# Episodes of an environment share their tools, and a schema's validator is slow to build.
@functools.lru_cache(maxsize=4096)
def _spec(tool: str) -> ToolSpec | str:
    """Return a tool's spec, or why it cannot be used."""
    try:
        return ToolSpec.of_openai(json.loads(tool))
    except ValueError as error:
        logger.warning("a tool is left out: %s", error)
        return str(error)


def _check(place: int, call: ParsedCall, tools: Sequence[ToolSpec], use: ToolUse, turn: int) -> Checked:
    call = ParsedCall(_clean(call.name), _clean(call.arguments))
    problem, words = _problem(place, call, tools, use)
    return Checked(call_id(turn, place), call, problem, f"error: {words}" if problem else "")


def _problem(place: int, call: ParsedCall, tools: Sequence[ToolSpec], use: ToolUse) -> tuple[str, str]:
    """Return the kind of problem and its text, or two empty strings."""
    if place >= use.max_calls:
        most = "one call" if use.max_calls == 1 else f"at most {use.max_calls} calls"
        return "too_many", f"not carried out: {most} a message"
    tool = find_tool(tools, call.name)
    if tool is None:
        return "unknown_tool", f"there is no tool {_quoted(call.name)!r}{_nearest(call.name, tools)}"
    try:
        arguments = call.decoded()
    except ValueError as error:
        return "bad_json", f"the arguments of {tool.name} are no JSON: {_quoted(str(error))}; {_quoted(tool.usage)}"
    try:
        misfit = tool.problem(arguments)
    except RecursionError:
        misfit = "nested too deeply"
    return ("", "") if misfit is None else ("bad_arguments", f"{tool.name}: {_quoted(misfit)}; {_quoted(tool.usage)}")


def _nearest(name: str, tools: Sequence[ToolSpec]) -> str:
    names = [tool.name for tool in tools]
    return did_you_mean(name[:64], names, f"; there are {', '.join(names[:_LISTED])}" if names else "", before="; ")


def _quoted(text: str) -> str:
    text = _clean(text)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"


def _clean(text: str) -> str:
    # Escaped JSON may hold lone surrogates, which cannot be encoded.
    return text.encode("utf-8", "replace").decode()

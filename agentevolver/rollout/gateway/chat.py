"""OpenAI's chat completions: `POST /v1/chat/completions`, plain and streamed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from agentevolver.rollout.gateway import request as read_of
from agentevolver.rollout.gateway.request import Completion, GatewayRequest, Message, invalid, object_of

_UNSUPPORTED = {
    "logprobs": "the gateway keeps the sampled log-probs",
    "top_logprobs": "the gateway keeps the sampled log-probs",
    "prompt_logprobs": "the prompt is not scored",
    "echo": "the prompt is not sent back",
    "functions": "send them as tools",
    "function_call": "send tool_choice",
    "audio": "the policy writes text only",
    "web_search_options": "no tool is run here",
    "continue_final_message": "a reply cannot be continued",
}
_READ = frozenset(
    {
        *("model", "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stop", "n", "stream"),
        *("stream_options", "response_format", "parallel_tool_calls", "modalities", *_UNSUPPORTED),
        *read_of.AGENTS_OWN,
    }
)
# Shared strings: messages are kept, and each body would bring strings of its own.
_ROLES = {**{role: role for role in ("system", "user", "assistant", "tool")}, "developer": "system"}


def read(body: Mapping[str, Any]) -> GatewayRequest:
    """Parse a request's body. Raises RequestRefused."""
    read_of.refuse(body, _UNSUPPORTED)
    if body.get("n") not in (None, 1):
        raise invalid("n: more than one choice is not supported: send the request again", "n")
    if body.get("modalities") not in (None, ["text"]):
        raise invalid("modalities other than text are not supported", "modalities")
    messages = [_message_of(message, f"messages[{i}]") for i, message in enumerate(read_of.list_of(body, "messages"))]
    options = object_of(body.get("stream_options") or {}, "stream_options")
    return GatewayRequest(
        read_of.conversation(messages, "messages"),
        [_tool(tool, f"tools[{i}]") for i, tool in enumerate(read_of.list_of(body, "tools"))],
        read_of.tool_choice_of(body),
        read_of.limit_of(body, "max_completion_tokens", "max_tokens"),
        read_of.stop_of(body, "stop"),
        read_of.structure_of(body.get("response_format"), "response_format"),
        read_of.ignored_of(body, _READ),
        read_of.model_of(body),
        read_of.flag_of(body, "stream"),
        read_of.flag_of(options, "include_usage"),
    )


def _tool(tool: Any, place: str) -> dict[str, Any]:
    kind = object_of(tool, place).get("type", "function")
    if kind != "function":
        raise invalid(f"{place}: tools of the type {str(kind)[:40]!r} are not supported, functions are", place)
    return read_of.tool_of(tool.get("function"), f"{place}.function")


def _message_of(message: Any, place: str) -> Message:
    given = object_of(message, place).get("role")
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise invalid(f"{place}: messages of the role {str(given)[:40]!r} are not supported", place)
    found: Message = {"role": role}
    found["content"] = read_of.text_of(message.get("content"), f"{place}.content")
    if role == "assistant":
        if message.get("audio") or message.get("function_call"):
            raise invalid(f"{place}: audio and function_call are not supported", place)
        thought = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thought, str):
            found["reasoning_content"] = thought
        if calls := message.get("tool_calls"):
            found["tool_calls"] = _calls(calls, f"{place}.tool_calls")
    elif role == "tool":
        found["tool_call_id"] = str(message.get("tool_call_id") or "")
        if isinstance(name := message.get("name"), str):
            found["name"] = name
    return found


def _calls(calls: Any, place: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise invalid(f"{place} must be a list", place)
    found = []
    for i, call in enumerate(calls):
        if object_of(call, f"{place}[{i}]").get("type", "function") != "function":
            raise invalid(f"{place}[{i}]: calls other than of functions are not supported", place)
        function = object_of(call.get("function"), f"{place}[{i}].function")
        found.append(read_of.call_of(function.get("name"), function.get("arguments") or "{}", call.get("id"), place))
    return found


def _usage(completion: Completion) -> dict[str, Any]:
    prompt, sampled = completion.prompt_tokens, completion.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def reply(completion: Completion, reply_id: str, model: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{reply_id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": _said(completion), "logprobs": None, "finish_reason": completion.finish}],
        "usage": _usage(completion),
    }


def events(completion: Completion, reply_id: str, model: str, *, with_usage: bool) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a streamed answer: the reply as one delta, its end, and the usage if requested."""
    base = {
        "id": f"chatcmpl-{reply_id}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
        **({"usage": None} if with_usage else {}),
    }
    delta = _said(completion)
    if completion.calls:
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(completion.calls)]
    yield {**base, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}
    yield {**base, "choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": completion.finish}]}
    if with_usage:
        yield {**base, "choices": [], "usage": _usage(completion)}


def _said(completion: Completion) -> Message:
    content = None if completion.calls and not completion.content else completion.content
    calls = {"tool_calls": completion.calls} if completion.calls else {}
    return {"role": "assistant", "content": content, **calls}

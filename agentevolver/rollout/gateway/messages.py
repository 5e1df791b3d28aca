"""Anthropic's messages: `POST /v1/messages`, plain and streamed, and `/v1/messages/count_tokens`.

Each tool result becomes a tool message. Thoughts are separate blocks if the agent asked for `thinking`, else text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from agentevolver.rollout.gateway import request as read_of
from agentevolver.rollout.gateway.request import Completion, GatewayRequest, Message, ToolChoice, invalid, object_of

_UNSUPPORTED = {"container": "nothing is run here", "mcp_servers": "nothing is run here"}
_READ = frozenset(
    {
        *("model", "messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences", "stream", "thinking"),
        *("metadata", "service_tier", "cache_control", "betas", "anthropic_version", *_UNSUPPORTED),
    }
)


def read(body: Mapping[str, Any]) -> GatewayRequest:
    """Parse a request's body. Raises RequestRefused."""
    read_of.refuse(body, _UNSUPPORTED)
    thinking = object_of(body.get("thinking") or {}, "thinking").get("type")
    system = read_of.text_of(body.get("system"), "system")
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for i, message in enumerate(read_of.list_of(body, "messages")):
        messages += _messages(message, f"messages[{i}]")
    return GatewayRequest(
        read_of.conversation(messages, "messages"),
        [_tool(tool, f"tools[{i}]") for i, tool in enumerate(read_of.list_of(body, "tools"))],
        _tool_choice(body),
        read_of.limit_of(body, "max_tokens"),
        read_of.stop_of(body, "stop_sequences"),
        None,
        read_of.ignored_of(body, _READ),
        read_of.model_of(body),
        read_of.flag_of(body, "stream"),
        thoughts_apart=thinking in ("enabled", "adaptive"),
    )


def _tool_choice(body: Mapping[str, Any]) -> ToolChoice:
    choice = object_of(body.get("tool_choice") or {}, "tool_choice")
    kind, name = choice.get("type", "auto"), choice.get("name")
    wanted = None if kind in ("auto", "none") else name if isinstance(name, str) else ""
    return ToolChoice(kind != "none", wanted, choice.get("disable_parallel_tool_use") is True)


def _tool(tool: Any, place: str) -> dict[str, Any]:
    kind = object_of(tool, place).get("type") or "custom"
    if kind != "custom":
        raise invalid(f"{place}: tools of the type {str(kind)[:40]!r} are not supported, custom ones are", place)
    names = {"name": "name", "description": "description", "input_schema": "parameters"}
    kept = {known: tool[name] for name, known in names.items() if tool.get(name) is not None}
    return {"type": "function", "function": kept}


def _messages(message: Any, place: str) -> list[Message]:
    role, content = object_of(message, place).get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise invalid(f"{place}: messages of the role {str(role)[:40]!r} are not supported", place)
    if not isinstance(content, list):
        return [{"role": role, "content": read_of.text_of(content, f"{place}.content")}]
    if role == "assistant":
        return [_said(content, place)]
    results = [_result(part, f"{place}.content[{i}]") for i, part in enumerate(content) if _kind(part) == "tool_result"]
    rest = [(part, f"{place}.content[{i}]") for i, part in enumerate(content) if _kind(part) != "tool_result"]
    text = "".join([read_of.part_text(part, where) for part, where in rest])
    return [*results, {"role": role, "content": text}] if text or not results else results


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else None


def _result(part: dict[str, Any], place: str) -> Message:
    content = read_of.text_of(part.get("content"), f"{place}.content")
    return {"role": "tool", "tool_call_id": str(part.get("tool_use_id") or ""), "content": content}


def _said(content: list[Any], place: str) -> Message:
    texts, thoughts, calls = [], [], []
    for i, part in enumerate(content):
        where, kind = f"{place}.content[{i}]", _kind(part)
        if kind == "tool_use":
            arguments = orjson.dumps(object_of(part.get("input") or {}, f"{where}.input")).decode()
            calls.append(read_of.call_of(part.get("name"), arguments, part.get("id"), where))
        elif kind == "thinking":
            thoughts.append(read_of.text_of(part.get("thinking"), where))
        elif kind != "redacted_thinking":
            texts.append(read_of.part_text(part, where))
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def reply(completion: Completion, reply_id: str, model: str, *, thoughts_apart: bool) -> dict[str, Any]:
    return {
        **_begun(completion, reply_id, model),
        "content": _blocks(completion, thoughts_apart=thoughts_apart),
        **_end(completion),
        "usage": {**_begun(completion, reply_id, model)["usage"], "output_tokens": completion.completion_tokens},
    }


def _begun(completion: Completion, reply_id: str, model: str) -> dict[str, Any]:
    return {
        "id": f"msg_{reply_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": completion.prompt_tokens,
            "output_tokens": 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }


def _end(completion: Completion) -> dict[str, Any]:
    if completion.stopped_by is not None and completion.finish == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": completion.stopped_by}
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    return {"stop_reason": reasons[completion.finish], "stop_sequence": None}


def _blocks(completion: Completion, *, thoughts_apart: bool) -> list[dict[str, Any]]:
    thought, answer = completion.parted() if thoughts_apart else ("", completion.content)
    blocks: list[dict[str, Any]] = []
    if thought:
        blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
    if answer or not completion.calls:
        blocks.append({"type": "text", "text": answer})
    for call in completion.calls:
        function = call["function"]
        arguments = read_of.arguments_of(function["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return blocks


def events(
    completion: Completion, reply_id: str, model: str, *, thoughts_apart: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the named events of a streamed answer; every block is one delta."""
    for name, event in _events(completion, reply_id, model, thoughts_apart=thoughts_apart):
        yield name, {"type": name, **event}


def _events(
    completion: Completion, reply_id: str, model: str, *, thoughts_apart: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "message_start", {"message": _begun(completion, reply_id, model)}
    for place, block in enumerate(_blocks(completion, thoughts_apart=thoughts_apart)):
        at = {"index": place}
        yield "content_block_start", {**at, "content_block": _empty(block)}
        for delta in _deltas(block):
            yield "content_block_delta", {**at, "delta": delta}
        yield "content_block_stop", at
    yield "message_delta", {"delta": _end(completion), "usage": {"output_tokens": completion.completion_tokens}}
    yield "message_stop", {}


def _empty(block: dict[str, Any]) -> dict[str, Any]:
    kind = block["type"]
    return {**block, "input": {}} if kind == "tool_use" else {**block, kind if kind == "thinking" else "text": ""}


def _deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if block["type"] == "tool_use":
        yield {"type": "input_json_delta", "partial_json": orjson.dumps(block["input"]).decode()}
    elif block["type"] == "thinking":
        yield {"type": "thinking_delta", "thinking": block["thinking"]}
        yield {"type": "signature_delta", "signature": block["signature"]}
    else:
        yield {"type": "text_delta", "text": block["text"]}

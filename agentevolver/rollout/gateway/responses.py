"""OpenAI's responses: `POST /v1/responses`, plain and streamed.

A reply's items (thought, text, calls) become one message when the agent repeats them. A response is remembered while
its rollout is open, so that `previous_response_id` works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentevolver.rollout.gateway import request as read_of
from agentevolver.rollout.gateway.request import Completion, GatewayRequest, Message, RequestRefused, invalid, object_of

_UNSUPPORTED = {
    "background": "a response is answered at once",
    "conversation": "send previous_response_id, or the whole input",
    "prompt": "send instructions and input",
    "top_logprobs": "the gateway keeps the sampled log-probs",
}
_READ = frozenset(
    {
        *(
            "model",
            "input",
            "instructions",
            "previous_response_id",
            "tools",
            "tool_choice",
            "max_output_tokens",
            "text",
        ),
        *("stream", "stream_options", "parallel_tool_calls", *_UNSUPPORTED),
        *read_of.AGENTS_OWN,
        *("include", "truncation", "client_metadata"),
    }
)
# Tools that OpenAI's servers run. They are left out of the policy's prompt.
_HOSTED = frozenset(
    {
        *("web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp"),
        *("computer_use_preview", "tool_search"),
    }
)


def read(body: Mapping[str, Any], remembered: Callable[[str], list[Message] | None]) -> GatewayRequest:
    """Parse a request's body. Raises RequestRefused.

    `remembered` returns the conversation up to an earlier response, or None.
    """
    read_of.refuse(body, _UNSUPPORTED)
    text = object_of(body.get("text") or {}, "text")
    tools, ignored = _tools(body)
    system = []
    if instructions := read_of.text_of(body.get("instructions"), "instructions"):
        system = [{"role": "system", "content": instructions}]
    earlier = _earlier(body.get("previous_response_id"), remembered)
    messages = [*system, *earlier, *_messages(body.get("input"))]
    return GatewayRequest(
        read_of.conversation(messages, "input"),
        tools,
        read_of.tool_choice_of(body),
        read_of.limit_of(body, "max_output_tokens"),
        (),
        read_of.structure_of(text.get("format"), "text.format"),
        (*read_of.ignored_of(body, _READ), *ignored),
        read_of.model_of(body),
        read_of.flag_of(body, "stream"),
        thoughts_apart=True,
    )


def _earlier(response_id: Any, remembered: Callable[[str], list[Message] | None]) -> list[Message]:
    if response_id is None:
        return []
    found = remembered(response_id) if isinstance(response_id, str) else None
    if found is None:
        raise RequestRefused(
            400,
            f"no response of this rollout has the id {str(response_id)[:80]!r}",
            "previous_response_not_found",
            "previous_response_id",
        )
    return found


def kept(request: GatewayRequest, body: Mapping[str, Any], completion: Completion) -> list[Message]:
    """Return the messages to remember for `previous_response_id`: the request's without instructions, and the reply."""
    begin = 1 if body.get("instructions") else 0
    return [*request.messages[begin:], completion.message]


def _tools(body: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the functions in OpenAI's chat form, and the names of ignored tools (those that OpenAI's servers run)."""
    found, ignored = [], []
    for i, tool in enumerate(read_of.list_of(body, "tools")):
        place = f"tools[{i}]"
        kind = str(object_of(tool, place).get("type", "function"))
        if kind in _HOSTED:
            ignored.append(f"tools.{kind}")
        elif kind == "namespace":
            for j, function in enumerate(read_of.list_of(tool, "tools")):
                made = read_of.tool_of(function, f"{place}.tools[{j}]")
                # A namespace (an agent's MCP server) becomes a prefix of its functions' names.
                made["function"]["name"] = _flat(tool.get("name"), made["function"].get("name"))
                found.append(made)
        elif kind != "function":
            raise invalid(f"{place}: tools of the type {kind[:40]!r} are not supported, functions are", "tools")
        else:
            found.append(read_of.tool_of(tool, place))
    return found, ignored


def _flat(namespace: Any, name: Any) -> str:
    if not isinstance(namespace, str) or not isinstance(name, str):
        raise invalid("a namespace and each of its functions must have a name", "tools")
    return f"{namespace}__{name}"


def _namespaces(body: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Map the flat name of each function in a namespace back to (namespace, name)."""
    return {
        _flat(tool["name"], function["name"]): (tool["name"], function["name"])
        for tool in body.get("tools") or ()
        if tool.get("type") == "namespace"
        for function in tool.get("tools") or ()
    }


def _messages(given: Any) -> list[Message]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise invalid(f"input must be a text or a list of items, not {read_of.kind_of(given)}", "input")
    found: list[Message] = []
    # Whether the last message holds only a thought, to which a text item belongs.
    thought = False
    for i, item in enumerate(given):
        place = f"input[{i}]"
        kind = object_of(item, place).get("type", "message")
        if kind == "message":
            message = _message(item, place)
            if thought and message["role"] == "assistant":
                found[-1]["content"] = message["content"]
            else:
                found.append(message)
        elif kind == "function_call":
            if not found or found[-1]["role"] != "assistant":
                found.append({"role": "assistant", "content": ""})
            name = item.get("name") if not item.get("namespace") else _flat(item["namespace"], item.get("name"))
            call = read_of.call_of(name, item.get("arguments") or "{}", item.get("call_id"), place)
            found[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            answer = read_of.text_of(item.get("output"), f"{place}.output")
            found.append({"role": "tool", "tool_call_id": str(item.get("call_id") or ""), "content": answer})
        elif kind == "reasoning":
            parts = read_of.list_of(item, "content") or read_of.list_of(item, "summary")
            texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
            found.append({"role": "assistant", "content": "", "reasoning_content": "\n".join(texts)})
        else:
            raise invalid(f"{place}: items of the type {str(kind)[:40]!r} are not supported", place)
        thought = kind == "reasoning"
    return found


def _message(item: dict[str, Any], place: str) -> Message:
    role = item.get("role")
    if role not in ("system", "developer", "user", "assistant"):
        raise invalid(f"{place}: messages of the role {str(role)[:40]!r} are not supported", place)
    content = read_of.text_of(item.get("content"), f"{place}.content")
    return {"role": "system" if role == "developer" else role, "content": content}


def reply(completion: Completion, reply_id: str, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    cut = completion.finish == "length"
    prompt, sampled = completion.prompt_tokens, completion.completion_tokens
    return {
        **_response(reply_id, model, body),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _items(completion, reply_id, _namespaces(body)),
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + sampled,
        },
    }


def _response(reply_id: str, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": response_id(reply_id),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "temperature": None,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
    }


def response_id(reply_id: str) -> str:
    return f"resp_{reply_id}"


def _items(completion: Completion, reply_id: str, namespaces: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
    thought, answer = completion.parted()
    items: list[dict[str, Any]] = []
    if thought:
        parts = [{"type": "reasoning_text", "text": thought}]
        items.append({"id": f"rs_{reply_id}", "type": "reasoning", "summary": [], "content": parts})
    if answer or not completion.calls:
        part = {"type": "output_text", "text": answer, "annotations": [], "logprobs": []}
        items.append(
            {"id": f"msg_{reply_id}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        )
    for call in completion.calls:
        function, known = call["function"], {"type": "function_call", "status": "completed", "call_id": call["id"]}
        item = {"id": f"fc_{reply_id}_{call['id']}", **known, **function}
        if function["name"] in namespaces:
            item["namespace"], item["name"] = namespaces[function["name"]]
        items.append(item)
    return items


def events(
    completion: Completion, reply_id: str, model: str, body: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the named events of a streamed answer; the text or arguments of each item are one delta."""
    for number, (name, event) in enumerate(_events(completion, reply_id, model, body)):
        yield name, {"type": name, "sequence_number": number, **event}


def _events(
    completion: Completion, reply_id: str, model: str, body: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    begun, done = _response(reply_id, model, body), reply(completion, reply_id, model, body)
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for place, item in enumerate(done["output"]):
        at = {"output_index": place}
        yield "response.output_item.added", {**at, "item": _empty(item)}
        yield from _item_events(item, {**at, "item_id": item["id"]})
        yield "response.output_item.done", {**at, "item": item}
    yield f"response.{done['status']}", {"response": done}


def _empty(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] == "function_call":
        return {**item, "status": "in_progress", "arguments": ""}
    return {**item, "content": [], **({"status": "in_progress"} if item["type"] == "message" else {})}


def _item_events(item: dict[str, Any], at: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if item["type"] == "function_call":
        yield "response.function_call_arguments.delta", {**at, "delta": item["arguments"]}
        yield "response.function_call_arguments.done", {**at, "name": item["name"], "arguments": item["arguments"]}
        return
    (part,) = item["content"]
    within: dict[str, Any] = {**at, "content_index": 0}
    more: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
    yield "response.content_part.added", {**within, "part": {**part, "text": ""}}
    yield f"response.{part['type']}.delta", {**within, "delta": part["text"], **more}
    yield f"response.{part['type']}.done", {**within, "text": part["text"], **more}
    yield "response.content_part.done", {**within, "part": part}

"""The common form of requests and replies of all APIs.

A message is what a chat template takes: `role` (system, user, assistant, tool), `content` (text), and optionally
`tool_calls` (OpenAI's form, `arguments` as JSON text), `tool_call_id`, `name`, `reasoning_content`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import orjson
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

Message = dict[str, Any]
Finish = Literal["stop", "length", "tool_calls"]
_CLOSE = "</think>"
# Fields of OpenAI's APIs that only matter to the agent or to OpenAI's own models; accepted silently.
AGENTS_OWN = (
    *("user", "metadata", "store", "service_tier", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_retention"),
)


class RequestRefused(Exception):
    """A refused request, with the HTTP status and the fields of an API error.

    `code` is one word, `param` the wrong field. With `retry_s` the same request may succeed after so many seconds.
    """

    def __init__(
        self,
        status: int,
        text: str,
        code: str = "invalid_request",
        param: str | None = None,
        retry_s: float | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.code = code
        self.param = param
        self.retry_s = retry_s


def invalid(text: str, param: str | None = None) -> RequestRefused:
    """Return the refusal of an unreadable or unsupported request."""
    return RequestRefused(400, text, "unsupported" if "not supported" in text else "invalid_request", param)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The request's `tool_choice` and `parallel_tool_calls`.

    - `may_call`: False if `tool_choice` is `none`.
    - `wanted`: name of the required function; "": any function; None: the policy decides.
    - `alone`: at most one call.
    """

    may_call: bool = True
    wanted: str | None = None
    alone: bool = False

    def missed(self, names: Sequence[str]) -> list[str]:
        """Return which of the two request fields a reply with these calls violates."""
        # Nothing is forced: constrained decoding would sample off-policy, and the result would be trained on as the
        # policy's own.
        met = self.wanted is None or (self.wanted in names if self.wanted else bool(names))
        several = self.alone and len(names) > 1
        return [*([] if met else ["tool_choice"]), *(["parallel_tool_calls"] if several else [])]


@dataclass(frozen=True, slots=True)
class GatewayRequest:
    """One model call of an agent.

    - `messages`: never empty; the last is not the assistant's.
    - `tools`: in OpenAI's form.
    - `stop`: texts that end the reply.
    - `structure`: form of the reply's text, `{"json": SCHEMA}` or `{"json_object": True}`.
    - `ignored`: fields without effect here.
    - `with_usage`: whether a stream ends with a usage event.
    - `thoughts_apart`: whether the reply's thought is separate from its text.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    choice: ToolChoice = field(default_factory=ToolChoice)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    structure: dict[str, Any] | None = None
    ignored: tuple[str, ...] = ()
    model: str = ""
    stream: bool = False
    with_usage: bool = False
    thoughts_apart: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """The reply to a request: its text with thoughts and without calls. `stopped_by` is the stop text that ended it, or
    None."""

    content: str
    calls: list[dict[str, Any]]
    finish: Finish
    prompt_tokens: int
    completion_tokens: int
    stopped_by: str | None = None

    @property
    def message(self) -> Message:
        return {"role": "assistant", "content": self.content, **({"tool_calls": self.calls} if self.calls else {})}

    def parted(self) -> tuple[str, str]:
        """Split the reply into its closed thought ("" without one) and the rest of its text."""
        thought, closed, answer = self.content.rpartition(_CLOSE)
        if not closed:
            return "", self.content
        return thought.replace("<think>", "", 1).strip(), answer.lstrip()


# ---- reading fields; each raises RequestRefused with the place of what is wrong ----


def text_of(value: Any, place: str) -> str:
    """Return the text of a content: a string, null, or text parts, which are joined."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid(f"{place} must be text or a list of parts, not {kind_of(value)}", place)
    return "".join([part_text(part, f"{place}[{i}]") for i, part in enumerate(value)])


def part_text(part: Any, place: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise invalid(f"{place} must be an object, not {kind_of(part)}", place)
    kind = part.get("type", "text")
    if kind in ("text", "input_text", "output_text", "refusal"):
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise invalid(f"{place}.text must be text, not {kind_of(text)}", place)
        return text
    raise invalid(
        f"{place}: content of the type {str(kind)[:40]!r} is not supported: the policy reads text only", place
    )


def call_of(name: Any, arguments: Any, call_id: Any, place: str) -> dict[str, Any]:
    if not isinstance(name, str) or not name:
        raise invalid(f"{place} must name the function that is called", place)
    if not isinstance(arguments, str):
        raise invalid(f"{place}: arguments must be JSON text, not {kind_of(arguments)}", place)
    return {"id": str(call_id or ""), "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_of(function: Any, place: str) -> dict[str, Any]:
    object_of(function, place)
    kept = {name: function[name] for name in ("name", "description", "parameters") if function.get(name) is not None}
    return {"type": "function", "function": kept}


def tool_choice_of(body: Mapping[str, Any]) -> ToolChoice:
    """Read OpenAI's `tool_choice` and `parallel_tool_calls`."""
    choice, alone = body.get("tool_choice"), body.get("parallel_tool_calls")
    if not isinstance(choice, str | dict | None):
        raise invalid("tool_choice must be a text or an object", "tool_choice")
    flag_of(body, "parallel_tool_calls")
    wanted: str | None = None
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        wanted = name if isinstance(name, str) else ""
    elif choice not in (None, "auto", "none"):
        wanted = ""
    return ToolChoice(choice != "none", wanted, alone is False)


def arguments_of(text: str) -> dict[str, Any]:
    """Return a call's arguments as an object. Any other text becomes the single argument `arguments`."""
    try:
        value = orjson.loads(text.strip() or "{}")
    except orjson.JSONDecodeError:
        value = text
    return value if isinstance(value, dict) else {"arguments": value}


def list_of(body: Mapping[str, Any], name: str) -> list[Any]:
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(f"{name} must be a list, not {kind_of(value)}", name)
    return value


def json_of(raw: bytes) -> Any:
    try:
        return orjson.loads(raw) if raw else None
    except orjson.JSONDecodeError as error:
        raise invalid(f"the body is not JSON: {error}") from error


def body_of(raw: bytes) -> dict[str, Any]:
    value = json_of(raw)
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object")
    return value


def object_of(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(f"{place} must be an object, not {kind_of(value)}", place)
    return value


def limit_of(body: Mapping[str, Any], *names: str) -> int | None:
    """Return the reply's token limit from the first of these fields that is set, or None."""
    for name in names:
        if (value := body.get(name)) is not None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise invalid(f"{name} must be a positive integer", name)
            return value
    return None


def stop_of(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = body.get(name)
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or len(texts) > 16 or not all(isinstance(text, str) for text in texts):
        raise invalid(f"{name} must be a text or a list of at most 16 texts", name)
    return tuple(text for text in texts if text)


def flag_of(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise invalid(f"{name} must be true or false", name)
    return bool(value)


def model_of(body: Mapping[str, Any]) -> str:
    value = body.get("model")
    if not isinstance(value, str | None):
        raise invalid("model must be a text", "model")
    return value or ""


def structure_of(value: Any, place: str) -> dict[str, Any] | None:
    """Read OpenAI's `response_format` or `text.format`."""
    if value is None:
        return None
    form = object_of(value, place)
    kind = form.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        held = form.get("json_schema", form)
        schema = object_of(object_of(held, place).get("schema", {}), f"{place}.schema")
        try:
            _check_schema(orjson.dumps(schema))
        except (SchemaError, orjson.JSONEncodeError) as error:
            raise invalid(f"{place}.schema is no JSON schema: {getattr(error, 'message', error)}", place) from error
        return {"json": schema}
    raise invalid(f"{place} of the type {str(kind)[:40]!r} is not supported: text, json_object, json_schema are", place)


@lru_cache(maxsize=64)
def _check_schema(written: bytes) -> None:
    Draft202012Validator.check_schema(orjson.loads(written))


def refuse(body: Mapping[str, Any], unsupported: Mapping[str, str]) -> None:
    """Refuse a body that sets an unsupported field."""
    for name, why in unsupported.items():
        value = body.get(name)
        if value is not None and value is not False and value != [] and value != {}:
            raise invalid(f"{name} is not supported: {why}", name)


def ignored_of(body: Mapping[str, Any], read: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in body.keys() - read if body[name] is not None))


def conversation(messages: Sequence[Message], place: str) -> list[Message]:
    """Return the messages of a request. Refuses an empty list, or one that ends with the assistant."""
    if not messages:
        raise invalid(f"{place} must hold at least one message", place)
    if messages[-1]["role"] == "assistant":
        raise invalid(f"{place} ends with an assistant message: continuing a reply (prefill) is not supported", place)
    return list(messages)


def kind_of(value: Any) -> str:
    """Return the JSON name of a value's type."""
    names: Iterable[tuple[type, str]] = ((bool, "a boolean"), (dict, "an object"), (list, "a list"), (str, "a text"))
    return next((name for kind, name in names if isinstance(value, kind)), "null" if value is None else "a number")

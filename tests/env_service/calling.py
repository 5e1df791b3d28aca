"""Assistant messages as OpenAI's SDK gives them, for the tests of native tools."""

from __future__ import annotations

import json
from typing import Any

from openai.types.chat import ChatCompletionMessage


def calling(*calls: tuple[str, Any], content: str | None = None) -> dict[str, Any]:
    """A reply with calls (name, arguments as data or as JSON text), dumped by the SDK; ids are c0, c1, ..."""
    listed = [
        {
            "id": f"c{place}",
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for place, (name, given) in enumerate(calls)
    ]
    reply = {"role": "assistant", "content": content, "tool_calls": listed or None}
    return ChatCompletionMessage.model_validate(reply).model_dump()


def answers(result: Any) -> list[str]:
    """The contents of a step's tool messages, once ids and order are seen to be those of the calls."""
    ids = [message["tool_call_id"] for message in result["state"]]
    assert ids == [f"c{place}" for place in range(len(ids))]
    assert {message["role"] for message in result["state"]} == {"tool"}
    return [message["content"] for message in result["state"]]

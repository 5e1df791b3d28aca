"""Syntax of a seed policy's calls and their answers: `compact`, one line a call, or `hermes`, native tool calls.

A syntax holds all differences between demonstrations, tokenizers, chat templates and samplers. Both use ChatML.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentevolver.rollout.tools.hermes import HermesFormat
from env_service.base import Message
from env_service.environments.pocket.calls import PocketCall
from env_service.environments.pocket.tools import CONFIRM, KIND_CHECKS, TOOLS, Param

PAD, TURN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (PAD, TURN, END)
# A word with the mark or space before it, a digit, a run of marks, a line break, a run of other space.
_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|[\r\n]|[^\S\r\n]+(?!\S)|[^\S\r\n]+"
# The pattern of Qwen2's tokenizers; `AutoTokenizer` replaces any other by it.
SPLIT_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_COMPACT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') + '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)


@dataclass(frozen=True)
class Syntax:
    """A way to write calls.

    - `env_params`: parameters of PocketWorld's create.
    - `tags`: tokens beside ChatML's; like Qwen's, they are not special tokens.
    - `split`: pattern of the pieces that no token crosses.
    - `turn_tokens`, `episode_tokens`: limits of sampled replies and episodes.
    - `action`: a call as an assistant message; `said`: the text of such a message; `read`: sampled ids as a message.
    - `opened`: the text of the opening messages; `answered`: the text of the world's messages.
    """

    name: str
    chat_template: str
    action: Callable[[PocketCall], Message]
    said: Callable[[Message], str]
    read: Callable[[Any, list[int]], Message]
    opened: Callable[[Sequence[Message]], str]
    answered: Callable[[Sequence[Message]], str]
    split: str = _SPLIT
    tags: tuple[str, ...] = ()
    env_params: Mapping[str, Any] = field(default_factory=dict)
    turn_tokens: int = 24
    episode_tokens: int = 512


def _compact_action(call: PocketCall) -> Message:
    return {"role": "assistant", "content": str(call)}


def _compact_said(message: Message) -> str:
    return message["content"]


def _compact_read(tokenizer: Any, ids: list[int]) -> Message:
    return {"role": "assistant", "content": tokenizer.decode(ids)}


def _turns(messages: Sequence[Message]) -> str:
    return "".join(f"{TURN}{message['role']}\n{message['content']}{END}\n" for message in messages)


def arguments(call: PocketCall) -> dict[str, str | int]:
    """Return a call's positional arguments by name, in their order. Sites order them differently, so each value belongs
    to the first free parameter of its kind."""
    left: list[Param] = [*TOOLS[call.tool].params, CONFIRM]
    named: dict[str, str | int] = {}
    for value in call.args:
        param = next((one for one in left if KIND_CHECKS[one.kind](value)), left[0])
        left.remove(param)
        number = param.kind in ("hour", "amount", "qty") and value.isdigit()
        text = value.replace(".", "_") if param.kind == "tool" else value
        named[param.key] = int(value) if number else text
    return named


def _hermes_action(call: PocketCall) -> Message:
    function = {"name": call.tool.replace(".", "_"), "arguments": json.dumps(arguments(call))}
    native = {"id": "c00000000", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [native]}


def _hermes_said(message: Message) -> str:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    written = [
        f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}\n</tool_call>' for call in calls
    ]
    return "\n".join([message["content"], *written] if message["content"] else written)


def _hermes_read(tokenizer: Any, ids: list[int]) -> Message:
    parsed = HermesFormat(tokenizer).parse(ids, ())
    calls = [call.to_openai(f"c{place:08d}") for place, call in enumerate(parsed.calls)]
    message: Message = {"role": "assistant", "content": parsed.content}
    return {**message, "tool_calls": calls} if calls else message


def _hermes_opened(messages: Sequence[Message]) -> str:
    names = " ".join(name.replace(".", "_") for name in TOOLS)
    first, *rest = messages
    return _turns([{**first, "content": f"{first['content']}\ntools {names}"}, *rest])


def _hermes_answered(messages: Sequence[Message]) -> str:
    told = [message["content"] for message in messages if message["role"] == "tool"]
    rest = [message for message in messages if message["role"] != "tool"]
    inner = "".join(f"\n<tool_response>\n{text}\n</tool_response>" for text in told)
    return (f"{TURN}user{inner}{END}\n" if told else "") + _turns(rest)


COMPACT = Syntax("compact", _COMPACT_TEMPLATE, _compact_action, _compact_said, _compact_read, _turns, _turns)
HERMES = Syntax(
    "hermes",
    (Path(__file__).parent / "hermes.jinja").read_text(encoding="utf-8"),
    _hermes_action,
    _hermes_said,
    _hermes_read,
    _hermes_opened,
    _hermes_answered,
    split=SPLIT_QWEN,
    tags=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    env_params={"native_tools": True},
    turn_tokens=48,
    episode_tokens=768,
)
SYNTAXES = {syntax.name: syntax for syntax in (COMPACT, HERMES)}

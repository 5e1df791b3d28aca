"""What an assistant message asks for: to run code, or to end the episode with an answer.

Code comes as the first ```python block, as `<tool_call>{"name": "python", "arguments": {"code": ...}}</tool_call>`, or
as a structured tool call; code goes before an answer in the same message. What follows a closed `</think>` is looked
at, if there is one. Anything else is `Nothing`, with a sentence that tells the agent what was wrong.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from env_service.base import Message

Style = Literal["block", "tool_call", "structured"]

_BLOCK = re.compile(r"```(?:python3?|py)\b[ \t]*\n?", re.IGNORECASE)
_BLOCK_END = re.compile(r"^[ \t]*```", re.MULTILINE)
_TOOL_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_ANSWER_LINE = re.compile(
    r"^[ \t*_#>-]*(?:the[ \t]+)?(?:final[ \t]+)?answer[ \t*_]*(?::|\bis\b:?)(.*)$", re.IGNORECASE | re.MULTILINE
)
_BRACE = re.compile(r"\\boxed\s{0,3}\{|\\[{}]|[{}]")
_CALL_FORM = '<tool_call>{"name": "python", "arguments": {"code": "..."}}</tool_call>'


@dataclass(frozen=True)
class Code:
    """Code to run, how it was written, and how many further blocks or calls the message held."""

    source: str
    style: Style
    further: int = 0


@dataclass(frozen=True)
class Answer:
    """A final answer."""

    text: str


@dataclass(frozen=True)
class Nothing:
    """Neither code nor an answer; `reason` says so to the agent."""

    reason: str
    style: Style = "block"


Action = Code | Answer | Nothing


def boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` with balanced braces, or None."""
    opened: list[tuple[bool, int, int]] = []
    last = (-1, "")
    for token in _BRACE.finditer(text):
        mark = token[0]
        if mark == "}" and opened:
            is_box, start, inside = opened.pop()
            if is_box and start > last[0]:
                last = (start, text[inside : token.start()].strip())
        elif mark == "{" or mark.startswith("\\boxed"):
            opened.append((mark != "{", token.start(), token.end()))
    return last[1] if last[0] >= 0 else None


def answer_of(text: str) -> str | None:
    r"""Return the final answer of a message: the last `\boxed{...}`, else the last line `answer: ...`, else None."""
    inside = boxed(text)
    if inside:
        return inside
    lines = [line.strip(" \t*_") for line in _ANSWER_LINE.findall(text)]
    return next((line for line in reversed(lines) if line), None)


def _loaded(text: str) -> tuple[Any, str]:
    """Return the JSON value, or why there is none (model text may also be too deep or hold numbers that are too
    long)."""
    try:
        return json.loads(text, strict=False), ""
    except (ValueError, RecursionError) as error:
        return None, str(error)[:200]


def _code_of_call(name: Any, arguments: Any, style: Style, further: int) -> Action:
    if name != "python":
        return Nothing(f"There is no tool {repr(name)[:80]}; the only one is python: {_CALL_FORM}", style)
    if isinstance(arguments, str):
        arguments, wrong = _loaded(arguments)
        if wrong:
            return Nothing(f"The arguments of the tool call are no valid JSON ({wrong}).", style)
    code = arguments.get("code") if isinstance(arguments, dict) else None
    if not isinstance(code, str) or not code.strip():
        return Nothing(f"The tool call has no text `code` in its arguments; write {_CALL_FORM}", style)
    return Code(code, style, further)


def _structured(calls: list[dict[str, Any]]) -> Action:
    function = calls[0].get("function") if isinstance(calls[0], dict) else None
    if not isinstance(function, dict):
        return Nothing("The tool call has no `function`.", "structured")
    return _code_of_call(function.get("name"), function.get("arguments"), "structured", len(calls) - 1)


def _tagged(text: str) -> Action:
    bodies = _TOOL_CALL.findall(text)
    call, wrong = _loaded(bodies[0])
    if wrong:
        return Nothing(f"The tool call is no valid JSON ({wrong}); write {_CALL_FORM}", "tool_call")
    if not isinstance(call, dict):
        return Nothing(f"The tool call is no JSON object; write {_CALL_FORM}", "tool_call")
    return _code_of_call(call.get("name"), call.get("arguments"), "tool_call", len(bodies) - 1)


def _block(text: str, start: re.Match[str]) -> Action:
    rest = text[start.end() :]
    end = _BLOCK_END.search(rest)
    stop = end.start() if end else rest.find("```")
    source, after = (rest[:stop], rest[stop:]) if stop >= 0 else (rest, "")
    if not source.strip():
        return Nothing("The code block is empty.")
    return Code(source.rstrip("\n") + "\n", "block", len(_BLOCK.findall(after)))


def parse(message: Message) -> Action:
    """Return what the message asks for; never raises for what a model may write."""
    calls = message.get("tool_calls")
    if calls:
        return _structured(calls)
    text = (message["content"] or "").rsplit("</think>", 1)[-1]
    block, call = _BLOCK.search(text), text.find("<tool_call>")
    if call >= 0 and (block is None or call < block.start()):
        return _tagged(text)
    if block is not None:
        return _block(text, block)
    answer = answer_of(text)
    if answer:
        return Answer(answer)
    return Nothing(
        r"This message holds neither code nor an answer. Write a ```python block to run code, or finish with "
        r"\boxed{answer}."
    )

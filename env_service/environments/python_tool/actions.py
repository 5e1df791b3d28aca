"""Actions in an assistant message: code to run, or an answer that ends the episode.

Code is the first ```python block, a `<tool_call>` or a structured call, after the last `</think>`; code takes
precedence over an answer in the same message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from env_service.base import Message
from env_service.tool_calls import BadCall, ToolCall, after_thoughts, structured_calls, tagged_calls

TOOL_NAME = "python"
Style = Literal["block", "tool_call", "structured"]

_BLOCK = re.compile(r"```(?:python3?|py)\b[ \t]*\n?", re.IGNORECASE)
_BLOCK_END = re.compile(r"^[ \t]*```", re.MULTILINE)
_ANSWER_LINE = re.compile(
    r"^[ \t*_#>-]*(?:the[ \t]+)?(?:final[ \t]+)?answer[ \t*_]*(?::|\bis\b:?)(.*)$", re.IGNORECASE | re.MULTILINE
)
_BRACE = re.compile(r"\\boxed\s{0,3}\{|\\[{}]|[{}]")
_CALL_FORM = '<tool_call>{"name": "python", "arguments": {"code": "print(2 ** 10)"}}</tool_call>'
_ARGUMENTS = 'arguments like {"code": "print(2 ** 10)"}'
HOW_TO_RUN = """To run code, end your reply with one block like this:
```python
print(2 ** 10)
```"""
HOW_TO_CALL = f"To run code, make one call of {TOOL_NAME} a reply, with {_ARGUMENTS}, and write no output yourself."
END_WITHOUT_CODE = r"reply without code, with the answer as \boxed{1024}."
END_WITHOUT_CALL = r"reply without a call, with the answer as \boxed{1024}."


@dataclass(frozen=True)
class Code:
    """Code to run, its form, and the number of further blocks or calls in the message."""

    source: str
    style: Style
    further: int = 0


@dataclass(frozen=True)
class PythonAnswer:
    text: str


@dataclass(frozen=True)
class PythonNoAction:
    reason: str
    style: Style = "block"


Action = Code | PythonAnswer | PythonNoAction


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


def code_of(call: ToolCall | BadCall, style: Style, further: int = 0) -> Code | PythonNoAction:
    if isinstance(call, BadCall):
        end = f"; call {TOOL_NAME} with {_ARGUMENTS}." if style == "structured" else "."
        return PythonNoAction(f"{call.reason[0].upper()}{call.reason[1:]}{end}", style)
    form = f"; call it with {_ARGUMENTS}." if style == "structured" else f": {_CALL_FORM}"
    if call.name != TOOL_NAME:
        return PythonNoAction(f"There is no tool {repr(call.name)[:80]}, the only one is {TOOL_NAME}{form}", style)
    code = call.arguments.get("code")
    if not isinstance(code, str) or not code.strip():
        return PythonNoAction(f"The tool call has no text `code` in its arguments{form}", style)
    return Code(code, style, further)


def _block(text: str, start: re.Match[str]) -> Action:
    rest = text[start.end() :]
    end = _BLOCK_END.search(rest)
    stop = end.start() if end else rest.find("```")
    source, after = (rest[:stop], rest[stop:]) if stop >= 0 else (rest, "")
    if not source.strip():
        return PythonNoAction(f"The code block is empty. {HOW_TO_RUN}")
    return Code(source.rstrip("\n") + "\n", "block", len(_BLOCK.findall(after)))


def parse(message: Message) -> Action:
    """Return a message's action; never raises, whatever a model writes."""
    if calls := structured_calls(message):
        return code_of(calls[0], "structured", len(calls) - 1)
    text = after_thoughts(message.get("content") or "")
    block, call = _BLOCK.search(text), text.find("<tool_call>")
    if call >= 0 and (block is None or call < block.start()):
        tagged = tagged_calls(text, _CALL_FORM)
        return code_of(tagged[0], "tool_call", len(tagged) - 1)
    if block is not None:
        return _block(text, block)
    answer = answer_of(text)
    if answer:
        return PythonAnswer(answer)
    return PythonNoAction(
        f"This message holds neither code nor an answer. {HOW_TO_RUN}\nTo end the task, {END_WITHOUT_CODE}"
    )


def parse_native(message: Message) -> list[ToolCall | BadCall] | PythonAnswer | PythonNoAction:
    """Return a message's calls in order, or its answer if it has none; code in its text is not run."""
    if calls := structured_calls(message):
        return calls
    answer = answer_of(after_thoughts(message.get("content") or ""))
    if answer:
        return PythonAnswer(answer)
    return PythonNoAction(
        f"This message holds neither a call nor an answer. {HOW_TO_CALL} To end the task, {END_WITHOUT_CALL}"
    )

"""Code in an assistant message: all blocks fenced as python, in order, or calls of the tool `appworld`.

The last block may lack its closing fence, because sampling may have stopped there. Text in `<think>` holds no action.
For what cannot be executed, the agent reads a `problem`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from env_service.base import Message
from env_service.tool_calls import BadCall, ToolCall, structured_calls

TOOL_NAME = "appworld"
# A fence opens a line, or follows text if it names python: ```x``` in a sentence opens nothing.
_OPENING = re.compile(
    r"^[ \t]*```[ \t]*(?P<start>[\w+-]*)[^\n`]*\n|```[ \t]*(?P<inline>python3?|py)[ \t]*\r?\n",
    re.MULTILINE | re.IGNORECASE,
)
_CLOSING = re.compile(r"```[ \t]*(?=\r?\n|\Z)")
_PYTHON = frozenset({"python", "py", "python3"})


@dataclass(frozen=True, slots=True)
class Action:
    """Code blocks to execute in order, and the problem with the message, if there is one."""

    blocks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def parse(message: Message, *, is_simple: bool = False) -> Action:
    """Return the code of a message. With `is_simple`, a text without a fence is code."""
    if calls := structured_calls(message):
        read = [code_of(call) for call in calls]
        return Action([code for code, _ in read if code], [problem for _, problem in read if problem])
    text = _without_thought(message.get("content") or "")
    blocks, languages = _fenced(text)
    if blocks:
        return Action(blocks)
    if is_simple and not languages and text.strip():
        return Action([text.strip()])
    return Action(problems=[_nothing_to_run(text, languages)])


def _without_thought(text: str) -> str:
    _, closing, after = text.rpartition("</think>")
    if closing:
        return after
    return text.partition("<think>")[0]


def _fenced(text: str) -> tuple[list[str], list[str]]:
    blocks, others, position = [], [], 0
    while opening := _OPENING.search(text, position):
        closing = _CLOSING.search(text, opening.end())
        end, position = (closing.start(), closing.end()) if closing else (len(text), len(text))
        language = opening["start"] or opening["inline"] or ""
        if language.lower() in _PYTHON:
            code = text[opening.end() : end].strip("\r\n").rstrip()
            blocks += [code] if code.strip() else []
        else:
            others.append(language)
    return blocks, others


def _nothing_to_run(text: str, languages: list[str]) -> str:
    if not text.strip():
        return "Your message was empty."
    if languages:
        found = ", ".join(repr(language) if language else "no language" for language in languages)
        return f"Your message has a code block, but marked with {found} instead of python."
    return "Your message contains no code."


def code_of(call: ToolCall | BadCall) -> tuple[str, str]:
    """Return a call's code ("" if unusable) and the problem ("" if there is none)."""
    if call.name != TOOL_NAME:
        return "", f"There is no tool called {call.name!r}; the only one is {TOOL_NAME!r}."
    code = call.arguments.get("code") if isinstance(call, ToolCall) else None
    if isinstance(code, str) and code.strip():
        return code, ""
    return "", f'The arguments of {TOOL_NAME!r} must be a JSON object like {{"code": "print(1)"}}.'

"""Calls of gpt-oss: messages of the harmony format that are addressed to a function."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentevolver.tools.formats import ToolFormat
from agentevolver.tools.json_text import skip_space
from agentevolver.tools.reply import Reply, ReplyReader
from agentevolver.tools.schema import Parsed, ToolCall, ToolSpec
from agentevolver.tools.tagged import BadCall, Findings, read_arguments

_START, _MESSAGE, _CALL = "<|start|>", "<|message|>", "<|call|>"
_ENDS = ("<|end|>", _CALL, "<|return|>")
_IN_HEADER = ("<|channel|>", "<|constrain|>")
_FUNCTIONS = "functions."
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


@dataclass(frozen=True, slots=True)
class _Message:
    """A message of harmony: its header's text, and where it and its body stand. `body` is None where it has none."""

    header: str
    start: int
    body: tuple[int, int] | None
    end: int


def _messages(reply: Reply) -> Iterator[_Message]:
    start, header, body_start = 0, "", None
    for mark in reply.marks:
        if mark.tag == _MESSAGE and body_start is None:
            header, body_start = reply.text[start : mark.start], mark.end
        elif mark.tag in (_START, *_ENDS):
            if body_start is not None:
                yield _Message(header, start, (body_start, mark.start), mark.end)
            elif mark.start > start:
                yield _Message(reply.text[start : mark.start], start, None, mark.end)
            start, body_start = mark.end, None
    if body_start is not None:
        yield _Message(header, start, (body_start, len(reply.text)), len(reply.text))
    elif start < len(reply.text):
        yield _Message(reply.text[start:], start, None, len(reply.text))


class GptOssFormat(ToolFormat):
    """`to=functions.NAME<|channel|>commentary json<|message|>{...}<|call|>`, the recipient before or after the channel.

    The reply's text is what stands in other channels than `analysis`. A recipient that is no function of ours
    (`python`, `browser.search`) is a call of a tool of that name.
    """

    name = "gpt_oss"

    def __init__(self, tokenizer: Any) -> None:
        self._reader = ReplyReader(tokenizer, (_START, _MESSAGE, *_ENDS, *_IN_HEADER))

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The token after a call, beside the tokenizer's eos."""
        return self._reader.token_ids(_CALL)

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec]) -> Parsed:
        """Return a reply's text, calls and problems; raises nothing, whatever a model may write."""
        reply = self._reader.read(ids)
        found = Findings(reply)
        shown: list[str] = []
        for message in _messages(reply):
            recipient = _recipient(message)
            if recipient is None:
                shown.append(_shown(reply.text, message))
            elif not found.full:
                try:
                    found.add([_call(reply.text, recipient, message.body)], message.start, message.end)
                except BadCall as error:
                    found.problem(f"The call of {recipient[:60]!r} could not be read: {error}.")
                    shown.append(reply.text[slice(*message.body)] if message.body else "")
        return Parsed("\n".join(filter(None, shown)).strip(), tuple(found.calls), tuple(found.problems))


def _recipient(message: _Message) -> str | None:
    """Return whom a message is addressed to, None if it is nobody who could be called."""
    found = _RECIPIENT.search(message.header)
    if found is None or found[1] in ("assistant", "all", "user"):
        return None
    harmony = message.body is not None or _CHANNEL.search(message.header)
    return found[1] if harmony or found[1].startswith(_FUNCTIONS) else None


def _shown(text: str, message: _Message) -> str:
    """Return what a message that calls nothing says; an unfinished header, and a thought, say nothing."""
    channel = _CHANNEL.search(message.header)
    if message.body is None:
        return "" if channel or message.header.strip() == "assistant" else message.header
    return "" if channel and channel[1] == "analysis" else text[slice(*message.body)]


def _call(text: str, recipient: str, body: tuple[int, int] | None) -> ToolCall:
    if body is None:
        raise BadCall(f"{_MESSAGE} and its arguments were expected")
    name = recipient.removeprefix(_FUNCTIONS)
    start, end = skip_space(text, body[0]), body[1]
    if not name:
        raise BadCall("it has no name")
    if start >= end:
        return ToolCall(name, "{}")
    arguments, after = read_arguments(text, start)
    if skip_space(text, after) < end:
        raise BadCall(f"there is more text after its arguments: {text[after : min(end, after + 30)]!r}")
    if after > end:
        raise BadCall("its arguments do not end with it")
    return ToolCall(name, arguments)

"""Calls of Llama 3.1 to 3.3: JSON objects that are the whole reply, or follow `<|python_tag|>`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentevolver.rollout.tools.json_text import UnparsedCall, read_call, skip_space
from agentevolver.rollout.tools.reply import END_THINK, THINK, UNCLOSED, Findings, ParsedReply, ReplyReader
from agentevolver.rollout.tools.schema import Parsed, ParsedCall, ToolFormat, ToolSpec, find_tool

_TAG = "<|python_tag|>"
_KEYS = ("parameters", "arguments")
_MEANT = re.compile(r'"(?:parameters|arguments)"\s*:')
_NAMED = re.compile(r'"name"\s*:\s*"([^"]*)"')
_EMBEDDED = re.compile(r'(?<!`)\{\s*"name"\s*:\s*"([^"]*)"\s*,\s*"(?:parameters|arguments)"\s*:')


class Llama3Format(ToolFormat):
    """`{"name": ..., "parameters": {...}}`, several separated by `;`.

    Without `<|python_tag|>` the reply must begin with a call. Other JSON is text; a known tool's call after text is a
    problem.
    """

    name = "llama3"

    def __init__(self, tokenizer: Any) -> None:
        self._reader = ReplyReader(tokenizer, (_TAG, THINK, END_THINK))

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._reader.token_ids("<|eom_id|>")

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec]) -> Parsed:
        reply = self._reader.read(ids)
        found = Findings(reply)
        at, closed = _answer(reply)
        tag = next((mark for mark in reply.marks if mark.tag == _TAG and mark.start >= at), None)
        if not closed:
            if tag is not None:
                found.problem(UNCLOSED)
            return found.parsed()
        start = tag.start if tag else skip_space(reply.text, at)
        at = skip_space(reply.text, tag.end) if tag else start
        while True:
            try:
                call, end = _read(reply.text, at, tagged=tag is not None)
            except UnparsedCall as error:
                if tag is not None or found.calls or _is_meant(reply.text, at, tools):
                    found.problem(f"The call could not be read: {error}.")
                return found.parsed()
            found.add(call, start, end)
            start = at = skip_space(reply.text, end)
            if reply.text.startswith(";", at):
                found.hide(at, at + 1)
                start = at = skip_space(reply.text, at + 1)
            elif at < len(reply.text):
                found.problem(f"There is more text after a call: {reply.text[at : at + 30]!r}.")
            if at >= len(reply.text) or found.problems:
                return found.parsed()


def _answer(reply: ParsedReply) -> tuple[int, bool]:
    """Return where a thought at the reply's beginning ends, and whether it ends. The prompt may have opened it."""
    marks = [mark for mark in reply.marks if mark.tag in (THINK, END_THINK)]
    if not marks or (marks[0].tag == THINK and reply.text[: marks[0].start].strip()):
        return 0, True
    end = next((mark.end for mark in marks if mark.tag == END_THINK), None)
    return (0, False) if end is None else (end, True)


def _is_meant(text: str, at: int, tools: Sequence[ToolSpec]) -> bool:
    # Invalid text counts as a failed call if it has parameters or a known tool's name, or if such an object follows it.
    if not text.startswith("{", at):
        return any(find_tool(tools, embedded[1]) for embedded in _EMBEDDED.finditer(text, at))
    named = _NAMED.search(text, at)
    return bool(_MEANT.search(text, at)) or (named is not None and find_tool(tools, named[1]) is not None)


def _read(text: str, at: int, *, tagged: bool) -> tuple[ParsedCall, int]:
    if text.startswith("{", at):
        return read_call(text, at, _KEYS)
    if tagged:
        raise UnparsedCall(f"a JSON object with name and parameters was expected after {_TAG}")
    raise UnparsedCall(f"a call must be the whole reply, or follow {_TAG}")

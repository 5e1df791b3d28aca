"""Calls of Hermes, Qwen2.5, Qwen3 and others: a JSON object with `name` and `arguments` between tags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentevolver.rollout.tools.json_text import UnparsedCall, read_call, skip_space
from agentevolver.rollout.tools.reply import END_THINK, THINK, UNCLOSED, Findings, Mark, ReplyReader
from agentevolver.rollout.tools.schema import Parsed, ToolFormat, ToolSpec

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_LONGEST = 120  # characters of an example's arguments
# A reply that is a call without its tags, as small models write it.
_BARE = re.compile(r"\s*(?:```\w*\s*)?(?:tool_call\s*)?\{\s*\"?name\"?\s*:")


class HermesFormat(ToolFormat):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once for each call.

    Text inside a thought is no call, also if the prompt opened the thought. After a broken call the rest is still read.
    """

    name = "hermes"

    def __init__(self, tokenizer: Any) -> None:
        self._reader = ReplyReader(tokenizer, (OPENING, CLOSING, THINK, END_THINK))

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec]) -> Parsed:
        reply = self._reader.read(ids)
        marks, found = reply.marks, Findings(reply)
        place, thought, opened = 0, False, None
        while place < len(marks):
            mark = marks[place]
            place += 1
            if mark.tag == THINK:
                thought, opened = True, opened or mark
            elif mark.tag == END_THINK:
                if not thought:
                    found.forget()
                thought, opened = True, None
            elif opened is not None or found.full:
                continue
            elif mark.tag == CLOSING:
                found.problem(f"{CLOSING} stands without a {OPENING} before it.")
            else:
                place = _read(reply.text, marks, place, found)
        if opened is not None and any(mark.tag == OPENING and mark.start > opened.start for mark in marks):
            found.problem(UNCLOSED)
        if not marks and _BARE.match(reply.text):
            found.problem(f"A call must stand between {OPENING} and {CLOSING}.")
        parsed = found.parsed()
        if parsed.problems:
            name, arguments = (tools[0].name, tools[0].example) if tools else ("TOOL", "{...}")
            arguments = arguments if len(arguments) <= _LONGEST else "{...}"
            example = f'{OPENING}{{"name": "{name}", "arguments": {arguments}}}{CLOSING}'
            parsed = replace(parsed, problems=(*parsed.problems[:-1], f"{parsed.problems[-1]} Write {example}."))
        return parsed


def _read(text: str, marks: Sequence[Mark], place: int, found: Findings) -> int:
    """Read the call after the opening tag `marks[place - 1]`; return the index of the next tag."""
    opening, after = marks[place - 1], place
    try:
        call, end = read_call(text, skip_space(text, opening.end))
        end = skip_space(text, end)
        # Tags inside the call's JSON are text.
        while after < len(marks) and marks[after].start < end:
            after += 1
        closing = marks[after] if after < len(marks) else None
        if closing is None or closing.start > end or closing.tag != CLOSING:
            raise UnparsedCall(f"{CLOSING} was expected after it")
    except UnparsedCall as error:
        found.problem(f"The call after {OPENING} could not be read: {error}.")
        return place + 1 if place < len(marks) and marks[place].tag == CLOSING else place
    found.add(call, opening.start, closing.end)
    return after + 1

"""Formats whose calls stand between tags: which tags count, where thoughts are, and what a broken call is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from agentevolver.tools.formats import ToolFormat
from agentevolver.tools.json_text import BadJson, skip_space
from agentevolver.tools.reply import END_THINK, THINK, Reply, ReplyReader
from agentevolver.tools.schema import Parsed, ToolCall, ToolSpec

# A reply with more broken calls is read no further.
MAX_PROBLEMS = 8


class BadCall(ValueError):
    """What was meant as a call and is none; the message says why, for the agent."""


class Findings:
    """Calls and problems of a reply as they are found."""

    def __init__(self, reply: Reply) -> None:
        self._text = reply.text
        self._spans: list[tuple[int, int]] = []
        self.calls: list[ToolCall] = []
        self.problems: list[str] = []

    def call(self, call: ToolCall, start: int, end: int) -> None:
        """Note a call and its place, which is no part of the reply's text any more."""
        self.calls.append(call)
        self._spans.append((start, end))

    def problem(self, text: str) -> None:
        self.problems.append(text)

    @property
    def full(self) -> bool:
        return len(self.problems) >= MAX_PROBLEMS

    def forget(self) -> None:
        """Take everything back: it stood in a thought."""
        self._spans.clear()
        self.calls.clear()
        self.problems.clear()

    def parsed(self) -> Parsed:
        ends = [0, *(end for _, end in self._spans)]
        starts = [*(start for start, _ in self._spans), len(self._text)]
        text = "".join(self._text[end:start] for end, start in zip(ends, starts, strict=True))
        return Parsed(text.strip(), tuple(self.calls), tuple(self.problems))


class TaggedFormat(ToolFormat):
    """Calls between an opening and a closing tag.

    What stands in `<think>...</think>` is no call, nor what stands before a `</think>` whose thought the prompt opened.
    A broken call ends where the next tag begins.
    """

    opening = "<tool_call>"
    closing = "</tool_call>"

    def __init__(self, tokenizer: Any) -> None:
        self._reader = ReplyReader(tokenizer, (self.opening, self.closing, THINK, END_THINK))

    @abstractmethod
    def read_call(self, text: str, at: int, tools: Sequence[ToolSpec]) -> tuple[ToolCall, int]:
        """Return the call whose opening tag ends at a place of a text, and the place after it, where the closing tag
        is expected.

        Raises:
            BadCall, BadJson: it is broken.
        """

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec]) -> Parsed:
        """Return a reply's text, calls and problems; raises nothing, whatever a model may write."""
        reply = self._reader.read(ids)
        text, marks = reply.text, reply.marks
        found = Findings(reply)
        closings = {mark.start: mark for mark in marks if mark.tag == self.closing}
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
            elif mark.tag == self.closing:
                found.problem(f"{self.closing} stands without a {self.opening} before it")
            else:
                try:
                    call, end = self.read_call(text, mark.end, tools)
                    closing = closings.get(skip_space(text, end))
                    if closing is None:
                        raise BadCall(f"{self.closing} was expected after it")
                except (BadCall, BadJson) as error:
                    found.problem(f"The call in {self.opening} could not be read: {error}.")
                    if place < len(marks) and marks[place].tag == self.closing:
                        place += 1
                    continue
                found.call(call, mark.start, closing.end)
                while place < len(marks) and marks[place].start < closing.end:
                    place += 1
        if opened is not None and any(mark.tag == self.opening and mark.start > opened.start for mark in marks):
            found.problem(f"The thought was never closed with {END_THINK}, so the call in it was not carried out.")
        return found.parsed()

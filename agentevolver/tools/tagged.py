"""Formats whose calls stand between tags: which tags count, where thoughts are, and what a broken call is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from agentevolver.tools.formats import ToolFormat
from agentevolver.tools.json_text import BadJson, read_object, skip_space
from agentevolver.tools.reply import END_THINK, THINK, Mark, Reply, ReplyReader
from agentevolver.tools.schema import Parsed, ToolCall, ToolSpec

# A reply with more broken calls is read no further.
MAX_PROBLEMS = 8


class BadCall(ValueError):
    """Malformed call: what was meant as one and is none; the message says why, for the agent."""


class Findings:
    """Calls and problems of a reply as they are found."""

    def __init__(self, reply: Reply) -> None:
        self._text = reply.text
        self._spans: list[tuple[int, int]] = []
        self.calls: list[ToolCall] = []
        self.problems: list[str] = []

    def add(self, calls: Sequence[ToolCall], start: int, end: int) -> None:
        """Note calls and their place, which is no part of the reply's text any more."""
        self.calls += calls
        self.hide(start, end)

    def hide(self, start: int, end: int) -> None:
        """Leave a place that lies after all others out of the reply's text."""
        self._spans.append((start, end))

    def problem(self, text: str) -> None:
        """Note what was meant as a call and is none."""
        if not self.full:
            self.problems.append(text)

    @property
    def full(self) -> bool:
        """Whether so much is broken that the rest is not looked at."""
        return len(self.problems) >= MAX_PROBLEMS

    def forget(self) -> None:
        """Take everything back: it stood in a thought."""
        self._spans.clear()
        self.calls.clear()
        self.problems.clear()

    def parsed(self) -> Parsed:
        """Return the reply taken apart."""
        ends = [0, *(end for _, end in self._spans)]
        starts = [*(start for start, _ in self._spans), len(self._text)]
        text = "".join(self._text[end:start] for end, start in zip(ends, starts, strict=True))
        return Parsed(text.strip(), tuple(self.calls), tuple(self.problems))


def read_json_call(text: str, at: int, keys: Sequence[str] = ("arguments",)) -> tuple[ToolCall, int]:
    """Return the call that is a JSON object at a place of a text, and the place after it. The arguments stand under one
    of some keys, and stay as written.

    Raises:
        BadJson: it is no JSON object.
        BadCall: its name is no text, or its arguments are no object.
    """
    members, end = read_object(text, at)
    name = members.get("name")
    if name is None:
        raise BadCall('it has no "name"')
    if not isinstance(name.value, str) or not name.value.strip():
        raise BadCall('its "name" is no name')
    given = [key for key in keys if key in members]
    if len(given) != 1:
        wanted = " or ".join(f'"{key}"' for key in keys)
        raise BadCall(f"it has {'more than one of' if given else 'no'} {wanted}")
    arguments = members[given[0]]
    if not isinstance(arguments.value, dict):
        raise BadCall(f'its "{given[0]}" must be a JSON object')
    return ToolCall(name.value, arguments.text), end


def read_arguments(text: str, at: int) -> tuple[str, int]:
    """Return the JSON object at a place of a text as written, and the place after it.

    Raises:
        BadCall: there is none.
    """
    try:
        _, end = read_object(text, at)
    except BadJson as error:
        raise BadCall(f"its arguments are broken: {error}") from None
    return text[at:end], end


class TaggedFormat(ToolFormat):
    """Calls after an opening tag, and before a closing one where the format has one.

    What stands in `<think>...</think>` is no call, nor what stands before a `</think>` whose thought the prompt opened.
    A broken call ends where the next tag begins, and the rest of the reply is read on.
    """

    opening = "<tool_call>"
    closing: str | None = "</tool_call>"
    # Before and after several calls; no part of the text.
    wrappers: tuple[str, ...] = ()
    # Tags within a call.
    inner: tuple[str, ...] = ()
    # Beside the tokenizer's eos.
    stops: tuple[str, ...] = ()
    thinks: tuple[str, ...] = (THINK,)
    thought_ends: tuple[str, ...] = (END_THINK,)

    def __init__(self, tokenizer: Any) -> None:
        closing = (self.closing,) if self.closing else ()
        tags = (self.opening, *closing, *self.wrappers, *self.inner, *self.thinks, *self.thought_ends)
        self._reader = ReplyReader(tokenizer, tags)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens of the family that end a reply of calls, beside the tokenizer's eos."""
        return self._reader.token_ids(*self.stops)

    @abstractmethod
    def read_calls(self, text: str, at: int, limit: int, tools: Sequence[ToolSpec]) -> tuple[list[ToolCall], int]:
        """Return what stands after an opening tag.

        Args:
            text: the reply.
            at: where the opening tag ends.
            limit: where the next opening or closing tag begins, or the text ends.
            tools: those that the reply may call.

        Returns:
            The calls, and the place after them, where the closing tag is expected.

        Raises:
            BadCall, BadJson: there is none, or a broken one.
        """

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec]) -> Parsed:
        """Return a reply's text, calls and problems; raises nothing, whatever a model may write."""
        reply = self._reader.read(ids)
        marks = [mark for mark in reply.marks if mark.tag not in self.inner]
        found = Findings(reply)
        place, thought, opened = 0, False, None
        while place < len(marks):
            mark = marks[place]
            place += 1
            if mark.tag in self.thinks:
                thought, opened = True, opened or mark
            elif mark.tag in self.thought_ends:
                if not thought:
                    found.forget()
                thought, opened = True, None
            elif opened is not None or found.full:
                continue
            elif mark.tag in self.wrappers:
                found.hide(mark.start, mark.end)
                following = marks[place].tag if place < len(marks) else None
                if mark.tag == self.wrappers[0] and following != self.opening:
                    found.problem(f"No {self.opening} follows {mark.tag}.")
            elif mark.tag == self.closing:
                found.problem(f"{self.closing} stands without a {self.opening} before it.")
            else:
                place = self._call(reply.text, marks, place, tools, found)
        if opened is not None and any(mark.tag == self.opening and mark.start > opened.start for mark in marks):
            found.problem(
                f"The thought was never closed with {self.thought_ends[0]}, so the call in it was not carried out."
            )
        return found.parsed()

    def _call(self, text: str, marks: Sequence[Mark], place: int, tools: Sequence[ToolSpec], found: Findings) -> int:
        """Read what the opening tag before a place opens, and return the place of the next tag to look at."""
        opening, after = marks[place - 1], place
        bounds = (i for i in range(place, len(marks)) if marks[i].tag in (self.opening, self.closing))
        bound = next(bounds, None)
        limit = len(text) if bound is None else marks[bound].start
        try:
            calls, end = self.read_calls(text, opening.end, limit, tools)
            end = skip_space(text, end)
            while after < len(marks) and marks[after].start < end:
                after += 1
            following = marks[after] if after < len(marks) else None
            if self.closing is None:
                if end < len(text) and (following is None or following.start > end):
                    raise BadCall(f"there is more text after it: {text[end : end + 30]!r}")
                found.add(calls, opening.start, end)
                return after
            if following is None or following.start > end or following.tag != self.closing:
                raise BadCall(f"{self.closing} was expected after it")
        except (BadCall, BadJson) as error:
            found.problem(f"The call after {self.opening} could not be read: {error}.")
            return place + 1 if place < len(marks) and marks[place].tag == self.closing else place
        found.add(calls, opening.start, following.end)
        return after + 1

"""A sampled reply as text with the positions of a format's tags, and the calls and problems found in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentevolver.rollout.tools.schema import Parsed, ParsedCall
from agentevolver.utils.tokens import decoder_of

THINK, END_THINK = "<think>", "</think>"
UNCLOSED = f"The thought was never closed with {END_THINK}, so the call in it was not carried out."
# Parsing stops after this many broken calls.
MAX_PROBLEMS = 8
# Tokens at a prompt's end, enough for `<think>` and a line break in any vocabulary.
_OPENING_TOKENS = 12
# A single backtick only: some families write calls in code blocks of three.
_QUOTED = re.compile(r"(?<!`)`\Z")


class ReplyTokenizer(Protocol):
    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...


@dataclass(frozen=True, slots=True)
class Mark:
    """A tag in a reply's text, from `start` up to `end`."""

    start: int
    end: int
    tag: str


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply's text with its tags but without other special tokens, and the tags in order."""

    text: str
    marks: tuple[Mark, ...]


class ReplyReader:
    """Converts sampled ids into a `ParsedReply`.

    If a tag is a token of the tokenizer, only that token counts, not the same characters. Other tags are found in the
    text, unless they follow a backtick.
    """

    def __init__(self, tokenizer: ReplyTokenizer, tags: Iterable[str]) -> None:
        # Clean-up would remove spaces before punctuation from a call's arguments with some tokenizers.
        self._decode = decoder_of(tokenizer, clean_up=False)
        self._added: dict[int, Any] = dict(getattr(tokenizer, "added_tokens_decoder", {}))
        self._tags = frozenset(tags)
        spelled = sorted(self._tags - {token.content for token in self._added.values()}, key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, spelled))) if spelled else None

    def token_ids(self, *texts: str) -> tuple[int, ...]:
        """Return the ids of those texts that are added tokens."""
        return tuple(i for i, token in self._added.items() if token.content in texts)

    def read(self, ids: Sequence[int]) -> ParsedReply:
        """Return the text and tags of sampled ids, in linear time."""
        parts: list[str] = []
        marks: list[Mark] = []
        length = begin = 0
        for place, token_id in enumerate(ids):
            token = self._added.get(token_id)
            if token is None or not (token.special or token.content in self._tags):
                continue
            parts.append(self._decode(ids[begin:place], False) if place > begin else "")
            length += len(parts[-1])
            begin = place + 1
            if token.content in self._tags:
                parts.append(token.content)
                marks.append(Mark(length, length + len(token.content), token.content))
                length += len(token.content)
        parts.append(self._decode(ids[begin:], False) if begin < len(ids) else "")
        text = "".join(parts)
        if self._spelled is not None:
            found = [Mark(*tag.span(), tag[0]) for tag in self._spelled.finditer(text)]
            marks += [mark for mark in found if not _QUOTED.search(text, max(0, mark.start - 2), mark.start)]
            marks.sort(key=lambda mark: mark.start)
        return ParsedReply(text, tuple(marks))


def begins_in_thought(tokenizer: ReplyTokenizer, prompt_ids: Sequence[int]) -> bool:
    """Whether a prompt ends with an opened thought, so that the reply begins in it."""
    end = tokenizer.decode(prompt_ids[-_OPENING_TOKENS:], skip_special_tokens=False)
    return end.rstrip().endswith(THINK)


class Findings:
    """Calls and problems found in a reply so far."""

    def __init__(self, reply: ParsedReply) -> None:
        self._text = reply.text
        self._spans: list[tuple[int, int]] = []
        self.calls: list[ParsedCall] = []
        self.problems: list[str] = []

    def add(self, call: ParsedCall, start: int, end: int) -> None:
        """Add a call and remove its span from the content."""
        self.calls.append(call)
        self.hide(start, end)

    def hide(self, start: int, end: int) -> None:
        """Remove a span, which must follow all earlier ones, from the content."""
        self._spans.append((start, end))

    def problem(self, text: str) -> None:
        if not self.full:
            self.problems.append(text)

    @property
    def full(self) -> bool:
        return len(self.problems) >= MAX_PROBLEMS

    def forget(self) -> None:
        # All findings so far were part of a thought.
        self._spans.clear()
        self.calls.clear()
        self.problems.clear()

    def parsed(self) -> Parsed:
        ends = [0, *(end for _, end in self._spans)]
        starts = [*(start for start, _ in self._spans), len(self._text)]
        text = "".join(self._text[end:start] for end, start in zip(ends, starts, strict=True))
        return Parsed(text.strip(), tuple(self.calls), tuple(self.problems))

"""A sampled reply as text with marks: where a format's tags stand, told by their ids wherever they are tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentevolver.utils.tokens import decoder_of

THINK, END_THINK = "<think>", "</think>"
# Of a prompt's end, enough to hold `<think>` and a line break in any vocabulary.
_OPENING_TOKENS = 12
# A backtick alone: three of them are a block of code, in which some families write calls.
_QUOTED = re.compile(r"(?<!`)`\Z")


class ReplyTokenizer(Protocol):
    """Tokenizer: what is used of a Hugging Face one."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...


@dataclass(frozen=True, slots=True)
class Mark:
    """A tag of a format within a reply's text, from `start` up to `end`."""

    start: int
    end: int
    tag: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply's text, its tags included and all other special tokens left out, and its tags in order."""

    text: str
    marks: tuple[Mark, ...]


class ReplyReader:
    """Reader of sampled ids as a `Reply`.

    A tag that is a token of the tokenizer's own counts only as that token: the same characters spelled by other tokens
    are text. A tag that is no token is looked for in the text, and one that follows a backtick is a quotation.
    """

    def __init__(self, tokenizer: ReplyTokenizer, tags: Iterable[str]) -> None:
        # Some tokenizers would else take spaces before punctuation out of a call's arguments.
        self._decode = decoder_of(tokenizer, clean_up=False)
        self._added: dict[int, Any] = dict(getattr(tokenizer, "added_tokens_decoder", {}))
        self._tags = frozenset(tags)
        spelled = sorted(self._tags - {token.content for token in self._added.values()}, key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, spelled))) if spelled else None

    def token_ids(self, *texts: str) -> tuple[int, ...]:
        """Return the ids of those of some tokens that the tokenizer has."""
        return tuple(i for i, token in self._added.items() if token.content in texts)

    def read(self, ids: Sequence[int]) -> Reply:
        """Return the text and tags of sampled ids; linear in their number."""
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
        return Reply(text, tuple(marks))


def begins_in_thought(tokenizer: ReplyTokenizer, prompt_ids: Sequence[int]) -> bool:
    """Whether a prompt ends with an opened thought, so that the reply begins in it."""
    end = tokenizer.decode(prompt_ids[-_OPENING_TOKENS:], skip_special_tokens=False)
    return end.rstrip().endswith(THINK)

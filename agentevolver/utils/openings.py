"""The query in an episode's opening messages: replace it, or read the opening without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]


def marked_query(messages: Sequence[Mapping[str, Any]], info: Mapping[str, Any] | None) -> str | None:
    """Return the query that `info` marks in the last opening message, or None unless it occurs there exactly once."""
    query = (info or {}).get("query")
    if not isinstance(query, str) or not query.strip() or not messages:
        return None
    content = messages[-1].get("content")
    # Unlike `count`, `find` and `rfind` see a second occurrence that overlaps the first.
    return query if isinstance(content, str) and 0 <= content.find(query) == content.rfind(query) else None


def replace_query(messages: Sequence[Mapping[str, Any]], query: str, info: Mapping[str, Any] | None) -> list[Message]:
    """Return messages with `query` in place of the marked one, else below the last message."""
    replaced = [dict(message) for message in messages]
    if not replaced:
        raise ValueError("the opening holds no message to put a query into")
    # The last message may hold more than the query (a map, a list of files), which must be kept.
    content, marked = str(replaced[-1]["content"]), marked_query(messages, info)
    replaced[-1]["content"] = f"{content}\n\n{query}" if marked is None else content.replace(marked, query, 1)
    return replaced


def without_query(messages: Sequence[Mapping[str, Any]], query: str | None) -> str:
    """Return the text of opening messages without the query, if the last message contains the query."""
    told = [str(message["content"]) for message in messages]
    if told and query:
        told[-1] = "".join(told[-1].rsplit(query, 1))
    return "\n\n".join(text.strip() for text in told if text.strip())


@dataclass(frozen=True, slots=True)
class Opening:
    messages: list[Message]
    query: str | None

    @classmethod
    def of(cls, made: Mapping[str, Any]) -> Opening:
        messages = [dict(message) for message in made["state"]]
        return cls(messages, marked_query(messages, made.get("info")))

    @property
    def context(self) -> str:
        return without_query(self.messages, self.query)

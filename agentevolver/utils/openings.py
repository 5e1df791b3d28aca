"""The query in an episode's opening messages: put another one in its place, or read the opening without it.

The last opening message may hold more than the query (a map, a list of files), and that must not get lost with it. An
environment marks its query with `info["query"]`; where it does not, another query goes below the last message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]


def marked_query(messages: Sequence[Mapping[str, Any]], info: Mapping[str, Any] | None) -> str | None:
    """Return the query that an environment marks in its last opening message;
    None if it marks none, or one that is not there once."""
    query = (info or {}).get("query")
    if not isinstance(query, str) or not query.strip() or not messages:
        return None
    content = messages[-1].get("content")
    # `find` and `rfind` see what `count` does not: a second occurrence that overlaps the first.
    return query if isinstance(content, str) and 0 <= content.find(query) == content.rfind(query) else None


def replace_query(messages: Sequence[Mapping[str, Any]], query: str, info: Mapping[str, Any] | None) -> list[Message]:
    """Return opening messages that ask for `query`: in the place of the marked one, else below the last message."""
    replaced = [dict(message) for message in messages]
    if not replaced:
        raise ValueError("the opening holds no message to put a query into")
    content, marked = str(replaced[-1]["content"]), marked_query(messages, info)
    replaced[-1]["content"] = f"{content}\n\n{query}" if marked is None else content.replace(marked, query, 1)
    return replaced


def without_query(messages: Sequence[Mapping[str, Any]], query: str | None) -> str:
    """Return the text of opening messages without the query,
    which may stand alone in the last one or beside other things.

    Everything is kept if the query is None or does not stand in the last message.
    """
    told = [str(message["content"]) for message in messages]
    if told and query:
        told[-1] = "".join(told[-1].rsplit(query, 1))
    return "\n\n".join(text.strip() for text in told if text.strip())


@dataclass(frozen=True, slots=True)
class Opening:
    """The opening of an instance: its messages, and the query
    that the environment marks in the last one (None: none is)."""

    messages: list[Message]
    query: str | None

    @classmethod
    def of(cls, made: Mapping[str, Any]) -> Opening:
        """Read what creating an instance returned."""
        messages = [dict(message) for message in made["state"]]
        return cls(messages, marked_query(messages, made.get("info")))

    @property
    def context(self) -> str:
        """The text without the query: rules, tools and whatever of the state the opening shows."""
        return without_query(self.messages, self.query)

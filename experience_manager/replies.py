"""What the summariser answers, as types, in the shapes that models put it.

Forgiving in form and strict in substance: a list or a single object where an object with a list was asked for, tags as
one text, a confidence as a word or a percentage, keys beside those that were asked for. Entries are taken one by one:
one that cannot be read is left out and counted, and a reply of which none can be read is no reply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from agentevolver.llm.shares import read_share


def _confidence(value: Any) -> float:
    """Return a share, also where it is said in a word; one that cannot be read says nothing."""
    share = read_share(value)
    return 0.5 if share is None else share


def _text(value: Any) -> Any:
    """Return a text, also where it comes in parts."""
    parts = value if isinstance(value, list) else [value]
    return "\n".join(parts) if parts and all(isinstance(part, str) for part in parts) else value


def _scope(value: Any) -> Any:
    return (
        ""
        if value is None
        else " | ".join(value)
        if isinstance(value, list) and all(isinstance(v, str) for v in value)
        else value
    )


def _tags(value: Any) -> Any:
    """Return a list of texts; tags are a help and no reason to lose what they stand at."""
    parts = re.split(r"[,;|\n]", value) if isinstance(value, str) else value if isinstance(value, list) else ()
    return [part.strip().lstrip("#") for part in parts if isinstance(part, str) and part.strip()]


class _Reply(BaseModel):
    # A model's remarks beside what was asked for are no fault.
    model_config = ConfigDict(extra="ignore")


class Proposal(_Reply):
    """An experience as the summariser wrote it."""

    when_to_use: Annotated[str, BeforeValidator(_text)]
    content: Annotated[str, BeforeValidator(_text)]
    scope: Annotated[str, BeforeValidator(_scope)] = ""
    tags: Annotated[list[str], BeforeValidator(_tags)] = Field(default_factory=list)
    confidence: Annotated[float, BeforeValidator(_confidence)] = 0.5


class _Entries(_Reply):
    """A list of entries under one key; `left_out` counts those that could not be read."""

    _left_out: int = PrivateAttr(0)

    @property
    def left_out(self) -> int:
        """How many entries of the reply could not be read."""
        return self._left_out

    @classmethod
    def _read(cls, data: Any, handler: ModelWrapValidatorHandler[Self], name: str, kind: type[_Reply]) -> Self:
        """Return the reply of the entries that can be read; raises what is wrong with the first of them if none can."""
        entries = _entries(data, name, kind)
        if entries is None:
            return handler(data)
        readable = [entry for entry in entries if _fits(entry, kind)]
        reply = handler({name: readable or entries})
        reply._left_out = len(entries) - len(readable)
        return reply


class Proposals(_Entries):
    """Reply to `summariser/success`, `failure` and `comparative`."""

    experiences: list[Proposal]

    @model_validator(mode="wrap")
    @classmethod
    def _of_any_shape(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        return cls._read(data, handler, "experiences", Proposal)


class Judgement(_Reply):
    """What is thought of one experience; `number` says of which, from 1."""

    number: int | None = None
    reason: str = ""
    valid: bool
    score: Annotated[float, BeforeValidator(read_share)]


class Judgements(_Entries):
    """Reply to `summariser/validate`."""

    judgements: list[Judgement]

    @model_validator(mode="wrap")
    @classmethod
    def _of_any_shape(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        return cls._read(data, handler, "judgements", Judgement)

    def of(self, count: int) -> list[Judgement | None]:
        """Return the judgement of each of so many experiences, None for one that got none, or several that differ.

        Judgements without numbers are in order, if there is one for each.
        """
        numbers = [judgement.number for judgement in self.judgements]
        if len(numbers) == count and set(numbers) == {None}:
            return list(self.judgements)
        first = 0 if len(numbers) == count and set(numbers) == set(range(count)) else 1
        if first == 1 and 0 in numbers:
            # Counted from 0, or not: nobody knows which is which.
            return [None] * count
        found: dict[int | None, Judgement | None] = {}
        for judgement in self.judgements:
            known = found.setdefault(judgement.number, judgement)
            same = known is not None and (known.valid, known.score) == (judgement.valid, judgement.score)
            found[judgement.number] = known if same else None
        return [found.get(number) for number in range(first, first + count)]


class Order(_Reply):
    """Reply to `summariser/rerank`."""

    order: Annotated[list[int], BeforeValidator(lambda value: value if isinstance(value, list) else [value])]


class Rewritten(_Reply):
    """Reply to `summariser/rewrite`."""

    text: Annotated[str, BeforeValidator(_text)]


def _entries(data: Any, name: str, kind: type[_Reply]) -> list[Any] | None:
    """Return the entries of a reply, None if it is in no known shape: under their key, bare, or one alone."""
    if isinstance(data, Mapping):
        held = data.get(name)
        if held is None and name not in data:
            held = [data] if _fits(data, kind) else None
        return [held] if isinstance(held, Mapping) else held if isinstance(held, list) else None
    # An empty list says nothing: prose is full of them.
    return data if isinstance(data, list) and any(_fits(entry, kind) for entry in data) else None


def _fits(entry: Any, kind: type[_Reply]) -> bool:
    try:
        kind.model_validate(entry)
    except ValidationError:
        return False
    return True

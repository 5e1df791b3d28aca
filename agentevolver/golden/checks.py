"""Predicates on a reply: what a good one holds, never how it is worded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_PREDICATES = ("some", "every", "none", "is_", "between", "count")


class Check(BaseModel):
    """One predicate on the values at a place of a reply. Texts are searched with regular expressions, whatever the
    case.

    `at` is a path of keys and indices with dots between them, `*` for all entries of a list; without it, the reply is
    the one value.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        min_length=1, description="what it stands for in the report; shared by cases that look at the same"
    )
    at: str = ""
    some: str | None = Field(None, description="one of the values holds this")
    every: str | None = Field(None, description="there are values, and each holds this")
    none: str | None = Field(None, description="no value holds this")
    is_: Any = Field(None, alias="is", description="there are values, and each is this, or one of these")
    between: tuple[float, float] | None = Field(
        None, description="there are values, and each is a number in this range"
    )
    count: tuple[int, int] | None = Field(None, description="so many values there are")

    @field_validator("some", "every", "none")
    @classmethod
    def _is_pattern(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if all(getattr(self, name) is None for name in _PREDICATES):
            raise ValueError(f"asks nothing: give one of {', '.join(name.rstrip('_') for name in _PREDICATES)}")
        return self

    def holds(self, reply: Any) -> bool:
        """Return whether all that it asks is so."""
        values = values_at(reply, self.at)
        texts = [value if isinstance(value, str) else repr(value) for value in values]
        wanted = self.is_ if isinstance(self.is_, list) else [self.is_]
        return (
            (self.some is None or any(re.search(self.some, text, re.IGNORECASE) for text in texts))
            and (
                self.every is None
                or (bool(texts) and all(re.search(self.every, text, re.IGNORECASE) for text in texts))
            )
            and (self.none is None or not any(re.search(self.none, text, re.IGNORECASE) for text in texts))
            and (self.is_ is None or (bool(values) and all(value in wanted for value in values)))
            and (self.between is None or (bool(values) and all(_is_between(value, self.between) for value in values)))
            and (self.count is None or self.count[0] <= len(values) <= self.count[1])
        )


def values_at(reply: Any, path: str) -> list[Any]:
    """Return the values at a path of keys, indices and `*`; none where it leads nowhere."""
    values = [reply]
    for key in filter(None, path.split(".")):
        values = [inner for value in values for inner in _step(value, key)]
    return values


def _step(value: Any, key: str) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values()) if key == "*" else [value[key]] if key in value else []
    if isinstance(value, list):
        if key == "*":
            return value
        place = int(key) if key.lstrip("-").isdigit() else len(value)
        return [value[place]] if -len(value) <= place < len(value) else []
    return []


def _is_between(value: Any, bounds: tuple[float, float]) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bounds[0] <= value <= bounds[1]

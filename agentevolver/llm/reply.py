"""Parser of JSON replies (bare, fenced, after thinking, or inside prose), and of shares (a confidence, a score)."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agentevolver.llm.prompts import restored

M = TypeVar("M", bound=BaseModel)

# JSON openings to look at; a reply with more is not an answer.
MAX_OPENINGS = 200
_OPENING = re.compile(r"[\[{]")
_BROKEN_OBJECT = re.compile(r'\{\s*"')
_THOUGHT_BEGINS, _THOUGHT_ENDS = "<think>", "</think>"
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
# strict=False: models write raw line breaks into strings.
_DECODER = json.JSONDecoder(strict=False)


class NoAnswer(ValueError):
    """The reply does not hold exactly one usable answer. `attempted`: it holds JSON that was meant as an answer."""

    def __init__(self, problem: str, *, attempted: bool = False) -> None:
        super().__init__(problem)
        self.attempted = attempted


@dataclass(frozen=True, slots=True)
class _Parts:
    values: list[Any]
    prose: list[str]

    @property
    def broken(self) -> bool:
        return any(_BROKEN_OBJECT.search(part) for part in self.prose)


def read_reply(text: str, schema: type[M]) -> M:
    """Return the one answer in a reply that fits the schema; raises NoAnswer, whose message tells the model the
    problem."""
    parts = _parts(text)
    problem = (
        "the JSON of the reply is broken"
        if parts.broken
        else "the reply holds no JSON"
        if text.strip()
        else "the reply is empty"
    )
    fitting: list[M] = []
    attempted = parts.broken
    for value in parts.values:
        try:
            model = _read(_as_written(value), schema)
        except ValidationError as error:
            problem = _problem(error)
            attempted = attempted or _is_attempt(value, schema)
            continue
        if model not in fitting:
            fitting.append(model)
    # Never guess: a reply may quote JSON that an agent or an environment wrote. Two different answers, or an answer
    # beside broken JSON, are refused.
    if len(fitting) > 1:
        raise NoAnswer(f"the reply holds {len(fitting)} different answers, it must hold one", attempted=True)
    if not fitting:
        raise NoAnswer(problem, attempted=attempted)
    if attempted:
        raise NoAnswer(
            "the reply holds an answer beside JSON that is broken or does not fit, it must hold one answer alone",
            attempted=True,
        )
    return fitting[0]


def _read(value: Any, schema: type[M]) -> M:
    try:
        return schema.model_validate(value)
    except ValidationError:
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
            return schema.model_validate(value[0])
        raise


def _is_attempt(value: Any, schema: type[BaseModel]) -> bool:
    return any(
        # Keys of the schema tell the model's own failed answer from JSON that it quotes.
        isinstance(part, dict) and not _keys(schema).isdisjoint(part)
        for part in (value if isinstance(value, list) else [value])
    )


def _as_written(value: Any) -> Any:
    # The prompt's text was escaped, and the model quotes it: take the escapes back in every string. A loop, so that
    # deeply nested JSON cannot exceed the recursion limit.
    whole = [value]
    holders: list[Any] = [whole]
    while holders:
        holder = holders.pop()
        for key, item in holder.items() if isinstance(holder, dict) else enumerate(holder):
            if isinstance(item, str):
                holder[key] = restored(item)
            elif isinstance(item, dict | list):
                holders.append(item)
    return whole[0]


@functools.cache
def _keys(schema: type[BaseModel]) -> frozenset[str]:
    # Nested models count as well.
    described = schema.model_json_schema()
    return frozenset(
        key for part in (described, *described.get("$defs", {}).values()) for key in part.get("properties", {})
    )


def read_prose(text: str) -> str:
    """Return a reply without its thinking and its JSON; raises NoAnswer if an object is broken."""
    parts = _parts(text)
    if parts.broken:
        raise NoAnswer("the JSON of the reply is broken")
    return " ".join(parts.prose)


def _parts(text: str) -> _Parts:
    whole = _decoded(text.strip())
    if isinstance(whole, dict | list):
        return _Parts([whole], [])
    _, answer = split_thinking(text)
    values, prose, position = [], [], 0
    for begin, end, value in _scan(answer):
        values.append(value)
        prose.append(answer[position:begin])
        position = end
    return _Parts(values, [*prose, answer[position:]])


def split_thinking(text: str) -> tuple[str, str]:
    """Return the thinking at the start of a reply ("" if none) and the rest; raises NoAnswer if the thinking has no
    end."""
    if not text.lstrip().startswith(_THOUGHT_BEGINS):
        return "", text
    # A `</think>` inside JSON is quoted text. Thinking that the chat template opened has no `<think>` in the reply and
    # cannot be recognised.
    spans = [(begin, end) for begin, end, _ in _scan(text)]
    position = text.find(_THOUGHT_ENDS)
    while position >= 0 and any(begin < position < end for begin, end in spans):
        position = text.find(_THOUGHT_ENDS, position + 1)
    if position < 0:
        raise NoAnswer("the reply ends inside its thinking")
    return text[:position].lstrip().removeprefix(_THOUGHT_BEGINS).strip(), text[position + len(_THOUGHT_ENDS) :]


def _decoded(text: str) -> Any:
    for attempt in (text, _without_commas(text)):
        try:
            return json.loads(attempt, strict=False)
        except (ValueError, RecursionError):
            continue
    return None


def _without_commas(text: str) -> str:
    # A space in place of a trailing comma keeps all positions.
    return _STRING_OR_COMMA.sub(lambda found: " " if found[0] == "," else found[0], text)


def _scan(text: str) -> Iterator[tuple[int, int, Any]]:
    """Yield begin, end and value of the outermost JSON values of a text."""
    position = 0
    text = _without_commas(text)
    for _ in range(MAX_OPENINGS):
        opening = _OPENING.search(text, position)
        if opening is None:
            return
        try:
            value, position = _DECODER.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            position = opening.start() + 1
            continue
        yield opening.start(), position, value


def _problem(error: ValidationError) -> str:
    found = [f"{'.'.join(map(str, e['loc'])) or 'the whole'}: {e['msg']}" for e in error.errors(include_url=False)[:5]]
    return "the JSON does not fit the schema: " + "; ".join(found)


_WORDS = {
    **{"certain": 1.0, "very high": 0.95, "high": 0.85, "likely": 0.75, "medium": 0.6, "moderate": 0.6},
    **{"unsure": 0.4, "low": 0.3, "unlikely": 0.25, "very low": 0.1, "none": 0.0},
}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*(?:(%|percent)|(?:/|out of)\s*(\d+(?:\.\d+)?))?", re.IGNORECASE)


def read_share(value: Any) -> float | None:
    """Return a share in 0..1, or None if the value is unreadable or ambiguous, like 7.

    A number up to 1 is itself, one above 10 is per cent; `80 %`, `4/5` and words like `likely` are read. Negative
    numbers are 0.
    """
    whole = None
    if isinstance(value, str):
        word = " ".join(value.split()).casefold()
        if word in _WORDS:
            return _WORDS[word]
        if found := _NUMBER.fullmatch(word):
            value, whole = float(found[1]), float(found[3] or 100) if found[2] or found[3] else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if whole is None:
        whole = 1 if value <= 10 else 100
    return max(0.0, value / whole) if 0 < whole >= value else None

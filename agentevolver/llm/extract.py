"""The JSON in a model's reply: bare, fenced, after its thinking, or with prose around it.

`read_reply` returns one validated answer or raises `NoAnswer`, whose message says what was wrong in words that the model can act on.
No answer is guessed: a reply with two different answers that both fit is refused, since the first may be a quoted example.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)

# A reply with more openings of JSON than this is no answer to the question that was asked.
MAX_OPENINGS = 200
_FENCE = re.compile(r"```[ \t]*[A-Za-z0-9_+-]*[ \t]*\r?\n(.*?)```", re.DOTALL)
_OPENING = re.compile(r"[\[{]")
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
# strict=False: models put line breaks into strings as they are.
_DECODER = json.JSONDecoder(strict=False)


class NoAnswer(ValueError):
    """A reply without exactly one usable answer."""


def read_reply(text: str, schema: type[M]) -> M:
    """Return the one answer of a reply that fits a schema; raises NoAnswer."""
    answer = after_thinking(text)
    problem = "the reply holds no JSON" if answer.strip() else "the reply is empty"
    fitting: list[M] = []
    for value in _values(answer):
        try:
            model = schema.model_validate(value)
        except ValidationError as error:
            problem = _problem(error)
            continue
        if model not in fitting:
            fitting.append(model)
    if len(fitting) > 1:
        raise NoAnswer(f"the reply holds {len(fitting)} different answers, it must hold one")
    if not fitting:
        raise NoAnswer(problem)
    return fitting[0]


def after_thinking(text: str) -> str:
    """Return what follows a model's thinking; raises NoAnswer if it never came to an end."""
    if text.lstrip().startswith("<think>") and "</think>" not in text:
        raise NoAnswer("the reply ends inside its thinking")
    return text.rpartition("</think>")[2]


def _values(text: str) -> list[Any]:
    """Every outermost JSON value of a reply: the whole of it, else those in fences, else those anywhere."""
    whole = _decoded(text.strip())
    if isinstance(whole, dict | list):
        return [whole]
    fenced = [value for block in _FENCE.findall(text) if isinstance(value := _decoded(block.strip()), dict | list)]
    return fenced or list(_scan(text))


def _decoded(text: str) -> Any:
    for attempt in (text, _STRING_OR_COMMA.sub(lambda found: "" if found[0] == "," else found[0], text)):
        try:
            return json.loads(attempt, strict=False)
        except (ValueError, RecursionError):
            continue
    return None


def _scan(text: str) -> Iterator[Any]:
    position = 0
    text = _STRING_OR_COMMA.sub(lambda found: "" if found[0] == "," else found[0], text)
    for _ in range(MAX_OPENINGS):
        opening = _OPENING.search(text, position)
        if opening is None:
            return
        try:
            value, position = _DECODER.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            position = opening.start() + 1
            continue
        yield value


def _problem(error: ValidationError) -> str:
    found = [f"{'.'.join(map(str, e['loc'])) or 'the whole'}: {e['msg']}" for e in error.errors(include_url=False)[:5]]
    return "the JSON does not fit the schema: " + "; ".join(found)

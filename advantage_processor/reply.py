"""A judge's reply as one label per step, or a typed refusal that says what is wrong with it.

Labels are read by index and never by counting words. Two forms are understood: JSON, `{"steps": [{"index", "analysis",
"label"}]}`, the list alone or an object by index, and the classic lines `Step i Judgment: GOOD|BAD`. Entries are read
one by one: one that is missing, has a label that is neither GOOD nor BAD, or says two things, costs none of the others.
    An index that was not asked for makes the whole
reply unusable, since its numbers are others then, and so do two different answers in one reply: no label is guessed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from agentevolver.llm.reply import NoAnswer, read_prose, read_reply

_LINE = r"^[ \t>*_#-]*Step[ \t]*(\d{1,6})[ \t*_]*"
_CLASSIC = re.compile(_LINE + r"Judge?ment[ \t*_]*:[ \t*_`\[]*(GOOD|BAD)[ \t*_`\].\r]*$", re.IGNORECASE | re.MULTILINE)
_ANALYSIS = re.compile(_LINE + r"Analysis[ \t*_]*:[ \t*_]*(.*)$", re.IGNORECASE | re.MULTILINE)


class LabelError(ValueError):
    """A reply without one label for each step; the message lists what is wrong, for the repair request and the
    record."""


@dataclass(frozen=True, slots=True)
class StepLabel:
    """The judge's word on a step."""

    index: int
    good: bool
    analysis: str = ""


_INDEX = re.compile(r"(?:step\s*)?(\d{1,6})", re.IGNORECASE)
_AROUND = " \t\r\n*_`'\"[].,!"


def _as_index(value: Any) -> Any:
    found = _INDEX.fullmatch(value.strip()) if isinstance(value, str) else None
    return int(found[1]) if found is not None else value


class Judgement(BaseModel):
    """One entry of a JSON reply."""

    model_config = ConfigDict(extra="ignore")

    index: Annotated[int, BeforeValidator(_as_index), Field(ge=0, strict=True)]
    analysis: str = ""
    label: Annotated[
        Literal["GOOD", "BAD"],
        BeforeValidator(lambda value: value.strip(_AROUND).upper() if isinstance(value, str) else value),
    ]


class Judgements(BaseModel):
    """A JSON reply; a list alone is taken for its `steps`, and so is an object of entries by index."""

    model_config = ConfigDict(extra="ignore")

    steps: Annotated[list[Judgement], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _in_its_shape(cls, value: Any) -> Any:
        return _as_steps(value)


class _Entries(BaseModel):
    """A JSON reply whose entries are not read yet, at least one of which can be."""

    model_config = ConfigDict(extra="ignore")

    steps: Annotated[list[Annotated[Judgement | Any, Field(union_mode="left_to_right")]], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _in_its_shape(cls, value: Any) -> Any:
        return _as_steps(value)

    @model_validator(mode="after")
    def _holds_one(self) -> _Entries:
        if not any(isinstance(entry, Judgement) for entry in self.steps):
            raise ValueError(f"no entry has an index and a label GOOD or BAD; the first: {_problem(self.steps[0])}")
        return self


def _as_steps(value: Any) -> Any:
    steps = value.get("steps") if isinstance(value, dict) and "steps" in value else value
    if isinstance(steps, list):
        return {"steps": steps}
    if isinstance(steps, dict) and steps and all(_INDEX.fullmatch(key.strip()) for key in steps):
        return {
            "steps": [
                {"index": key, **(entry if isinstance(entry, dict) else {"label": entry})}
                for key, entry in steps.items()
            ]
        }
    return value


def _problem(entry: Any) -> str:
    try:
        Judgement.model_validate(entry)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the entry'}: {first['msg']}"
    return ""


@dataclass(frozen=True, slots=True)
class Found:
    """Labels by index, and what is wrong with the reply otherwise, "" if nothing is."""

    labels: dict[int, StepLabel]
    problem: str = ""


def read_some(text: str, indices: Sequence[int]) -> Found:
    """Return the labels that can be read of those asked for, and why the others cannot; raises LabelError if none can
    be trusted."""
    lines = _from_lines(text)
    problems: list[str] = []
    try:
        entries = read_reply(text, _Entries).steps
    except NoAnswer as error:
        if error.attempted or not lines:
            raise LabelError(str(error)) from error
        labels = lines
    else:
        labels = [
            StepLabel(entry.index, entry.label == "GOOD", entry.analysis)
            for entry in entries
            if isinstance(entry, Judgement)
        ]
        problems = [
            f"an entry cannot be read ({_problem(entry)})" for entry in entries if not isinstance(entry, Judgement)
        ]
    if any(
        one.index == other.index and one.good is not other.good
        for one in lines
        for other in labels
        if labels is not lines
    ):
        raise LabelError("the reply's lines and its JSON say different things, it must hold one answer")
    if strange := sorted({label.index for label in labels} - set(indices)):
        raise LabelError("; ".join([*_missing(labels, indices), f"step {_listed(strange)} was not asked for"]))
    said = Counter((label.index, label.good) for label in labels)
    doubtful = sorted(
        index for index in {label.index for label in labels} if (index, True) in said and (index, False) in said
    )
    twice = sorted(
        index
        for index, count in Counter(label.index for label in labels).items()
        if count > 1 and index not in doubtful
    )
    if doubtful or twice:
        problems.append(f"step {_listed(sorted([*doubtful, *twice]))} has more than one entry")
    kept = {label.index: label for label in labels if label.index not in doubtful}
    return Found(
        kept, "; ".join([*_missing(labels, indices), *(problems if doubtful or len(kept) < len(indices) else [])])
    )


def _missing(labels: Sequence[StepLabel], indices: Sequence[int]) -> list[str]:
    known = {label.index for label in labels}
    missing = [index for index in indices if index not in known]
    return [f"step {_listed(missing)} has no entry"] if missing else []


def _listed(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices))


def _from_lines(text: str) -> list[StepLabel]:
    """Return the labels of the classic lines. What stands in JSON is no line: its strings may quote some."""
    try:
        prose = read_prose(text)
    except NoAnswer:
        return []
    analyses = {int(index): analysis.strip() for index, analysis in _ANALYSIS.findall(prose)}
    return [
        StepLabel(int(index), label.upper() == "GOOD", analyses.get(int(index), ""))
        for index, label in _CLASSIC.findall(prose)
    ]

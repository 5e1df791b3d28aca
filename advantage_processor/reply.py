"""A judge's reply as one label per step, or a typed refusal that says what is wrong with it.

Labels are read by index and never by counting words. Two forms are understood: JSON, `{"steps": [{"index", "analysis", "label"}]}` or
the list alone, and the classic lines `Step i Judgment: GOOD|BAD`. A missing, unknown or doubled index, a label that is neither GOOD
nor BAD, or two different answers in one reply make the whole reply unusable: no label is guessed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from agentevolver.llm.extract import NoAnswer, read_prose, read_reply

_LINE = r"^[ \t>*_#-]*Step[ \t]*(\d{1,6})[ \t*_]*"
_CLASSIC = re.compile(_LINE + r"Judge?ment[ \t*_]*:[ \t*_`\[]*(GOOD|BAD)[ \t*_`\].\r]*$", re.IGNORECASE | re.MULTILINE)
_ANALYSIS = re.compile(_LINE + r"Analysis[ \t*_]*:[ \t*_]*(.*)$", re.IGNORECASE | re.MULTILINE)


class LabelError(ValueError):
    """A reply without one label for each step; the message lists what is wrong, for the repair request and the record."""


@dataclass(frozen=True, slots=True)
class StepLabel:
    """The judge's word on a step."""

    index: int
    good: bool
    analysis: str = ""


class Judgement(BaseModel):
    """One entry of a JSON reply."""

    model_config = ConfigDict(extra="ignore")

    index: Annotated[int, Field(ge=0, strict=True)]
    analysis: str = ""
    label: Annotated[Literal["GOOD", "BAD"], BeforeValidator(lambda value: value.strip().upper() if isinstance(value, str) else value)]


class Judgements(BaseModel):
    """A JSON reply; a list alone is taken for its `steps`."""

    model_config = ConfigDict(extra="ignore")

    steps: Annotated[list[Judgement], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return {"steps": value} if isinstance(value, list) else value


def read_labels(text: str, indices: Sequence[int]) -> list[StepLabel]:
    """Return one label for each of `indices`, in their order; raises LabelError otherwise."""
    lines = _from_lines(text)
    try:
        labels = [StepLabel(entry.index, entry.label == "GOOD", entry.analysis) for entry in read_reply(text, Judgements).steps]
    except NoAnswer as error:
        if error.attempted or not lines:
            raise LabelError(str(error)) from error
        labels = lines
    _check(labels, indices)
    by_index = {label.index: label for label in labels}
    if any(line.index in by_index and by_index[line.index].good is not line.good for line in lines):
        raise LabelError("the reply's lines and its JSON say different things, it must hold one answer")
    return [by_index[index] for index in indices]


def _from_lines(text: str) -> list[StepLabel]:
    """Return the labels of the classic lines. What stands in JSON is no line: its strings may quote some."""
    try:
        prose = read_prose(text)
    except NoAnswer:
        return []
    analyses = {int(index): analysis.strip() for index, analysis in _ANALYSIS.findall(prose)}
    return [StepLabel(int(index), label.upper() == "GOOD", analyses.get(int(index), "")) for index, label in _CLASSIC.findall(prose)]


def _check(labels: Sequence[StepLabel], indices: Sequence[int]) -> None:
    counts = Counter(label.index for label in labels)
    problems = {
        "has no entry": [i for i in indices if i not in counts],
        "has more than one entry": [i for i, count in sorted(counts.items()) if count > 1],
        "was not asked for": sorted(set(counts) - set(indices)),
    }
    found = [f"step {', '.join(map(str, steps))} {problem}" for problem, steps in problems.items() if steps]
    if found:
        raise LabelError("; ".join(found))

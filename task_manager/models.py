"""Reply types of explorer, synthesiser, verifier and judge, which read what a model surely means.

What a model says wrongly is an `LLMReplyError`, after one repair; where one item of several is wrong, `read_task` says
what is wrong with it.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from agentevolver.llm.reply import read_share

# What a reply without a word on it is taken for.
UNSAID = 0.5


def _as_share(value: Any) -> Any:
    """Return what surely means a share from 0 to 1 as one, anything else as it is."""
    share = read_share(value)
    return value if share is None else share


def _as_action(value: Any) -> Any:
    """Return an action's text: of an object `{"action": ...}` what it holds, another object (a call, say) as JSON."""
    if isinstance(value, dict) and isinstance(value.get("action"), str | dict):
        return _as_action(value["action"])
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) and value else value


_OF_HUNDRED = re.compile(r"(\d{1,3})(?:\.0+)?\s*(?:/\s*100|%)?")


def _as_percentage(value: Any) -> Any:
    """Return what surely means a number from 0 to 100 as one, anything else as it is: 1 may be of one, of ten, or of a
    hundred."""
    if isinstance(value, str) and (found := _OF_HUNDRED.fullmatch(value.strip())) is not None:
        return int(found[1])
    if isinstance(value, float) and 0 < value < 1:
        return round(100 * value)
    return value


Confidence = Annotated[float, BeforeValidator(_as_share), Field(ge=0, le=1)]
Action = Annotated[str, BeforeValidator(_as_action), Field(max_length=20_000)]


class _Reply(BaseModel):
    # A model's remarks beside what was asked for are no fault.
    model_config = ConfigDict(extra="ignore", frozen=True)


class ActReply(_Reply):
    """What an explorer or a solver does next."""

    thought: str = ""
    action: Action = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, data: Any) -> Any:
        return data[0] if isinstance(data, list) and len(data) == 1 else data


class TaskReply(_Reply):
    """One proposed task."""

    query: str = Field(min_length=1, max_length=4_000)
    solution: list[Action] = Field(min_length=1, max_length=100)
    confidence: Confidence = UNSAID


class TasksReply(_Reply):
    """All tasks of one trajectory, not yet checked one by one; a reply of which nothing can be used is no reply."""

    tasks: list[Any]

    @model_validator(mode="before")
    @classmethod
    def _in_its_shape(cls, data: Any) -> Any:
        """Take a list of tasks for the object that was to hold it, and one task for a list of it."""
        if isinstance(data, list) and data and all(isinstance(item, dict) for item in data):
            return {"tasks": data}
        if isinstance(data, dict) and "tasks" not in data and "query" in data:
            return {"tasks": [data]}
        if isinstance(data, dict) and isinstance(data.get("tasks"), dict) and "query" in data["tasks"]:
            return {"tasks": [data["tasks"]]}
        return data

    @model_validator(mode="after")
    def _holds_one(self) -> TasksReply:
        if self.tasks and all(isinstance(read_task(item), str) for item in self.tasks):
            raise ValueError(f"no entry of tasks can be used; the first: {read_task(self.tasks[0])}")
        return self


def read_task(item: Any) -> TaskReply | str:
    """Return an entry of `tasks`, or what is wrong with it."""
    try:
        task = TaskReply.model_validate(item)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the entry'}: {first['msg'].lower()}"
    if not task.query.strip() or not any(action.strip() for action in task.solution):
        return "query or solution is blank"
    return task


class AcceptReply(_Reply):
    """Whether a task is fit for training."""

    reason: str = ""
    accepted: bool
    confidence: Confidence


class GradeReply(_Reply):
    """A graded rollout; the score lies in the band that `achieved` opens."""

    reason: str = ""
    relevant: bool
    achieved: bool
    score: Annotated[int, BeforeValidator(_as_percentage), Field(ge=0, le=100)]

    @model_validator(mode="after")
    def _in_its_band(self) -> GradeReply:
        if not self.relevant and (self.achieved or self.score > 0):
            raise ValueError("relevant is false, so achieved must be false and score 0")
        if self.achieved and self.score < 60:
            raise ValueError(f"achieved is true, so score must be 60 to 100, not {self.score}")
        if not self.achieved and self.score > 40:
            raise ValueError(f"achieved is false, so score must be 0 to 40, not {self.score}")
        return self

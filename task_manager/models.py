"""What self-questioning uses of a language model, and the replies it asks for as types.

`agentevolver.llm.LLM` fulfils `LanguageModel`; tests use smaller things. What a model says wrongly is an `LLMReplyError` there, after one
repair, or a `Rejected` here where one item of several is wrong.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentevolver.llm.settings import Role

M = TypeVar("M", bound=BaseModel)


class LanguageModel(Protocol):
    """What is used of `agentevolver.llm.LLM`."""

    async def structured(self, role: Role, messages: list[dict[str, Any]], schema: type[M], **sampling: Any) -> M:
        """Return the reply as `schema`; raises LLMError."""
        ...


class _Reply(BaseModel):
    # A model's remarks beside what was asked for are no fault.
    model_config = ConfigDict(extra="ignore", frozen=True)


class ActReply(_Reply):
    """What an explorer or a solver does next."""

    thought: str = ""
    action: str = Field(min_length=1, max_length=20_000)


class TaskReply(_Reply):
    """One proposed task."""

    query: str = Field(min_length=1, max_length=4_000)
    solution: list[str] = Field(min_length=1, max_length=100)
    confidence: float = Field(ge=0, le=1)


class TasksReply(_Reply):
    """All tasks of one trajectory, not yet checked one by one; a reply of which nothing can be used is no reply."""

    tasks: list[Any]

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

    reason: str
    accepted: bool
    confidence: float = Field(ge=0, le=1)


class GradeReply(_Reply):
    """A graded rollout; the score lies in the band that `achieved` opens."""

    reason: str
    relevant: bool
    achieved: bool
    score: int = Field(ge=0, le=100)

    @model_validator(mode="after")
    def _in_its_band(self) -> GradeReply:
        if not self.relevant and (self.achieved or self.score > 0):
            raise ValueError("relevant is false, so achieved must be false and score 0")
        if self.achieved and self.score < 60:
            raise ValueError(f"achieved is true, so score must be 60 to 100, not {self.score}")
        if not self.achieved and self.score > 40:
            raise ValueError(f"achieved is false, so score must be 0 to 40, not {self.score}")
        return self

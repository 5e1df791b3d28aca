"""A request for guidance, and the guidance found."""

from __future__ import annotations

from dataclasses import dataclass

from experience_manager.attempts import name_of_task, opening_and_task
from experience_manager.experience import Experience, normal
from experience_manager.guide import Message


@dataclass(frozen=True, slots=True)
class Question:
    task_id: str
    messages: tuple[Message, ...]  # the opening
    query: str | None = None  # the task's own wording, if it has one
    validation: bool = False
    step: int = 0
    place: int = 0  # index of the task in the step
    env_type: str = ""

    @property
    def opening_and_task(self) -> tuple[str, str]:
        return opening_and_task(self.messages, self.query)

    def evaluates_source_of(self, experience: Experience) -> bool:
        """Whether this is the evaluation of a task that the experience comes from, by task id or else by wording."""
        opening, task = self.opening_and_task
        if experience.task_ids:
            own = not {self.task_id, name_of_task(opening, task)}.isdisjoint(experience.task_ids)
        else:
            own = bool(experience.task_query) and normal(experience.task_query) == normal(task)
        return self.validation and own


@dataclass(frozen=True, slots=True)
class Retrieved:
    text: str = ""
    experiences: tuple[Experience, ...] = ()
    similarities: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()  # names of failed stages

"""A request for guidance, and the guidance found."""

from __future__ import annotations

from dataclasses import dataclass

from experience_manager.attempts import name_of_task, opening_and_task
from experience_manager.experience import Experience, normal
from experience_manager.guide import Message


@dataclass(frozen=True, slots=True)
class Question:
    """Retrieval request for one task."""

    task_id: str
    messages: tuple[Message, ...]
    query: str | None = None
    validation: bool = False
    step: int = 0
    place: int = 0
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
    """Guidance found for a task; `notes` names failed stages."""

    text: str = ""
    experiences: tuple[Experience, ...] = ()
    similarities: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

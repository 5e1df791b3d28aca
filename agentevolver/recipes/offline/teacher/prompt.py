"""A role's prompt as the teacher reads it, and the random draws of a reply.

A prompt that the teacher does not understand raises `NotUnderstood`; the service answers HTTP 400 with the message.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentevolver.llm.prompts import REPLY_IS_SENT, PromptError, StepText, read_sections, read_steps, read_task
from agentevolver.recipes.offline.teacher.intents import Intent, read_intent

WHAT = "the built-in teacher, a rule-based stand-in for a language model that knows the pocket world only"

# Python refuses to read numbers of more than 4,300 digits, with a ValueError.
_LONG_NUMBER = re.compile(r"\d{1000}")


class NotUnderstood(ValueError):
    """A request without a rule; the message says what was wrong and what the teacher understands."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A role's prompt: its task, and its sections by name.

    If `is_sent`, an acting role replies with the message itself instead of JSON with a thought.
    """

    task: str
    sections: dict[str, str]
    is_sent: bool = False

    def text(self, name: str) -> str:
        if name not in self.sections:
            raise NotUnderstood(
                f"{self.task}: the prompt has no section <{name}>; it has {sorted(self.sections) or 'none'}"
            )
        return self.sections[name]

    def steps(self, name: str = "transcript") -> list[StepText]:
        """Return the steps of a required section; raises NotUnderstood."""
        try:
            return read_steps(self.text(name))
        except PromptError as error:
            raise NotUnderstood(f"{self.task}: <{name}>: {error}") from error

    @property
    def focus(self) -> str:
        """The tool that the section `focus` names, or ""."""
        first = self.sections.get("focus", "").strip().partition("\n")[0]
        return first.removeprefix("tool:").strip()

    def intent(self) -> Intent:
        """Return the intent of the task; raises NotUnderstood for an unknown wording."""
        query = self.text("task")
        intent = read_intent(query)
        if intent is None:
            raise NotUnderstood(
                f"{self.task}: the task {query[:120]!r} is in no wording that the stand-in knows; it is no language "
                "model"
            )
        return intent


def read_prompt(messages: Any) -> Prompt:
    if not isinstance(messages, list) or len(messages) < 2 or not all(isinstance(m, dict) for m in messages):
        raise NotUnderstood("messages must be a list of a system and a user message at least")
    first, second = messages[0], messages[1]
    if first.get("role") != "system" or second.get("role") != "user":
        raise NotUnderstood("the first message must be of the system and the second of the user")
    if not isinstance(first.get("content"), str) or not isinstance(second.get("content"), str):
        raise NotUnderstood("the content of messages must be text")
    if _LONG_NUMBER.search(first["content"]) or _LONG_NUMBER.search(second["content"]):
        raise NotUnderstood("a number in the messages has 1,000 digits or more")
    try:
        task = read_task(first["content"])
    except PromptError as error:
        raise NotUnderstood(f"{error}. This is {WHAT}; docs/llm.md says what it reads") from error
    return Prompt(task, read_sections(second["content"]), is_sent=REPLY_IS_SENT in first["content"])


@dataclass(frozen=True, slots=True)
class MistakeRates:
    """Shares of deliberate mistakes (`TeacherSettings`)."""

    hallucinated: float = 0.15
    malformed: float = 0.02
    wrong_labels: float = 0.1
    wrong_grades: float = 0.02
    wrong_accepts: float = 0.005
    wrong_experiences: float = 0.05
    slips: float = 0.05


@dataclass(slots=True)
class TeacherDraws:
    """Random draws of one request. At temperature 0 only mistakes are random. `planted` lists the mistakes made."""

    rng: random.Random
    rates: MistakeRates
    temperature: float = 0.7
    planted: list[dict[str, Any]] = field(default_factory=list)

    def errs(self, share: float) -> bool:
        return self.rng.random() < share

    def plant(self, kind: str, **details: Any) -> None:
        self.planted.append({"kind": kind, **details})

    def pick(self, weighted: Sequence[tuple[Any, float]]) -> Any:
        """Return an item by weight; the heaviest at temperature 0."""
        if self.temperature == 0:
            return max(weighted, key=lambda item: item[1])[0]
        return self.rng.choices([item for item, _ in weighted], [weight for _, weight in weighted])[0]

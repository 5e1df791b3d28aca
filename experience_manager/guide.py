"""Guidance in a conversation, and the same conversation without it.

The guidance stands before the task, in the last opening message: `{system}<EXP>{guidance}</EXP>{task}` (paper 2.3). The
messages as they were are kept beside the guided ones, so that a training prompt without guidance is rendered from them
and never cut out of a text again. A rollout is guided if, and only if, a text was put into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Guidance:
    """What a rollout is given: a text, the ids of the experiences in it, and whether its training prompt keeps it.

    Without a text, `problem` says why: "empty" if nothing fits the task, else what went wrong.
    """

    text: str = ""
    experience_ids: tuple[str, ...] = ()
    keep: bool = False
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.text.strip())


@dataclass(frozen=True, slots=True)
class Injection:
    """Opening messages with guidance (`messages`, what the policy sees) and without (`plain`); `injected` is what was
    added."""

    messages: list[Message]
    plain: list[Message]
    guidance: Guidance = Guidance()
    injected: str = ""

    @property
    def guided(self) -> bool:
        """Whether a text was put into the conversation."""
        return bool(self.injected)

    @property
    def boosted(self) -> bool:
        """Whether the sample was guided and its training prompt does not say so."""
        return self.guided and not self.guidance.keep

    @property
    def training_messages(self) -> list[Message]:
        """The opening from which the training prompt is rendered."""
        return self.messages if self.guided and self.guidance.keep else self.plain

    def to_dict(self) -> dict[str, Any] | None:
        """Return what a trajectory records of it, JSON-ready; None if the rollout was not guided."""
        return {**asdict(self.guidance), "injected": self.injected} if self.guided else None


def inject(opening: Sequence[Mapping[str, Any]], guidance: Guidance, template: str) -> Injection:
    """Put guidance before the task.

    Args:
        opening: messages up to the first action; the last holds the task, as a string.
        guidance: without a text, the opening stays as it is; why, goes along.
        template: with `{}` where the text goes.

    Raises:
        ValueError: there is no message to put it into, or its content is no text.
    """
    plain = [dict(message) for message in opening]
    if not guidance:
        return Injection(plain, plain, guidance)
    if not plain or not isinstance(plain[-1].get("content"), str):
        raise ValueError("guidance stands before the task's text, and the opening does not end with one")
    injected = template.replace("{}", guidance.text, 1)
    last = {**plain[-1], "content": injected + plain[-1]["content"]}
    return Injection([*plain[:-1], last], plain, guidance, injected)


def without(messages: Sequence[Mapping[str, Any]], record: Mapping[str, Any] | None) -> list[Message]:
    """Return recorded messages as they would be without the guidance that `Injection.to_dict` recorded beside them."""
    plain = [dict(message) for message in messages]
    injected = str(record["injected"]) if record else ""
    for message in plain if injected else ():
        content = message.get("content")
        if message["role"] == "assistant":
            break
        if isinstance(content, str) and content.startswith(injected):
            message["content"] = content.removeprefix(injected)
    return plain

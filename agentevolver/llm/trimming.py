"""What is left out of a transcript that is too long for a model: the oldest observations first, never the latest steps.

One rule for every prompt with a transcript. The steps before the latest lose their thoughts and the middle of their
observations, the oldest first and no more than needed; if that is not enough they go altogether, the oldest first; then
the latest observations are shortened too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from agentevolver.llm.prompts import StepText

Steps = Sequence[StepText]

# Steps at the end that are kept as they are as long as anything else can go.
LATEST = 2
# Characters of an observation that say what kind of answer it was.
LEAST = 200
# What line breaks of the mark take when a transcript is laid out.
_SLACK = 16


def cut(text: str, limit: int) -> str:
    """Return text of at most `limit` characters (60 or more), its head and tail kept, and how much was left out in
    between."""
    if len(text) <= limit:
        return text
    mark = f"\n[... {len(text) - limit} characters and more left out ...]\n"
    head = (limit - len(mark) + 1) // 2
    return f"{text[:head]}{mark}{text[len(text) - (limit - len(mark) - head) :]}"


def fitted(steps: Steps, room: int, size: Callable[[Steps], int], *, latest: int = LATEST) -> list[StepText]:
    """Return the steps with as much left out as it takes that `size` of them is `room` at most.

    A step that stays keeps its number and its action. If not even the latest steps with shortened observations fit,
    these are returned. `size` counts the characters of the prompt with such steps in it.
    """
    kept = list(steps)
    old = max(0, len(kept) - latest)
    for place in range(old):
        kept[place] = _shortened(kept[place], size(kept) - room)
    while old > 0 and size(kept) > room:
        del kept[0]
        old -= 1
    for place in range(len(kept)):
        kept[place] = _shortened(kept[place], size(kept) - room)
    return kept


def _shortened(step: StepText, excess: int) -> StepText:
    if excess <= 0:
        return step
    left = excess - len(step.thought)
    observation = (
        step.observation if left <= 0 else cut(step.observation, max(LEAST, len(step.observation) - left - _SLACK))
    )
    return replace(step, thought="", observation=observation)

"""Reasoning template: think, then act. A thought is there for its own turn and is gone from every later prompt.

The turn in which a thought was sampled is trained on with it. A reply without a thought stays as it was sampled, so
that turns without thoughts become one sample. A thought may be marked by tags around it, or by a closing tag alone (a
generation prompt that opens the thought itself, as models behind a reasoning parser have it). What was cut off inside a
thought is a thought without an action: the environment is given an empty one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from context_manager.template import ContextTemplate

# How thoughts are marked, by the name of the reasoning parser or the habit.
STYLES = {
    "think": ("<think>", "</think>"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "granite": ("Here is my thought process:", "Here is my response:"),
}


def without_thought(text: str, tags: tuple[str, str], *, inside: bool = False) -> str:
    """Return what a reply says beyond its thoughts; `inside` says that it begins in one. Text without a thought is
    returned as it is."""
    opening, closing = tags
    _, closed, answer = text.rpartition(closing)
    # A thought that is opened again after its close and cut off is no answer either.
    rest, opened, _ = (answer if closed else text).partition(opening)
    if opened or closed:
        return rest.lstrip() if closed else rest.rstrip()
    return "" if inside else text


class ReasoningTemplate(ContextTemplate):
    """Context without the thoughts of earlier turns. `think_style` names how they are marked (default `think`);
    `think_hint` is added to the last opening message."""

    reads: ClassVar[frozenset[str]] = frozenset({"think_style", "think_hint"})
    _last = ("", "")

    def opening(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add the hint."""
        hint = self.options.think_hint
        if hint:
            messages[-1]["content"] = f"{messages[-1]['content']}\n\n{hint}"
        return messages

    def remembered(self, text: str, sampled_ids: Sequence[int]) -> str:
        """Keep the answer alone."""
        tags = STYLES[self.options.think_style or "think"]
        raw = self.renderer.raw_text(sampled_ids)
        answer = without_thought(text, tags, inside=tags[0] == "<think>" and self.renderer.opens_thought)
        if raw != text and any(tag in raw and tag not in text for tag in tags):
            # The tags are special tokens, which the plain text does not show.
            answer = self.renderer.text(self.renderer.encode(without_thought(raw, tags)))
        self._last = text, answer
        return answer

    def action(self, text: str) -> str:
        """Give the environment the answer alone."""
        said, answer = self._last
        return answer if text == said else without_thought(text, STYLES[self.options.think_style or "think"])

"""Reasoning template: thoughts are trained on in their own turn, and left out of later prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from context_manager.template import ContextTemplate

# Tags of thoughts. The generation prompt may already contain the opening one.
STYLES = {
    "think": ("<think>", "</think>"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "granite": ("Here is my thought process:", "Here is my response:"),
}


def without_thought(text: str, tags: tuple[str, str], *, inside: bool = False) -> str:
    """Return a reply without its thoughts; `inside`: it begins within one."""
    opening, closing = tags
    _, closed, answer = text.rpartition(closing)
    # Another thought may have been opened after the first and cut off.
    rest, opened, _ = (answer if closed else text).partition(opening)
    if opened or closed:
        return rest.lstrip() if closed else rest.rstrip()
    return "" if inside else text


class ReasoningTemplate(ContextTemplate):
    """Drops the thoughts of earlier turns. Replies without a thought keep their sampled ids."""

    reads: ClassVar[frozenset[str]] = frozenset({"think_style"})
    _last = ("", "")

    def remembered(self, text: str, sampled_ids: Sequence[int]) -> str:
        tags = STYLES[self.options.think_style or "think"]
        raw = self.renderer.raw_text(sampled_ids)
        answer = without_thought(text, tags, inside=tags[0] == "<think>" and self.renderer.opens_thought)
        if raw != text and any(tag in raw and tag not in text for tag in tags):
            # The tags are special tokens, which `text` lacks.
            answer = self.renderer.text(self.renderer.encode(without_thought(raw, tags)))
        self._last = text, answer
        return answer

    def action(self, text: str) -> str:
        """Return the answer only; empty if the reply was cut off within a thought."""
        said, answer = self._last
        return answer if text == said else without_thought(text, STYLES[self.options.think_style or "think"])

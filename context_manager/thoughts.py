"""Thoughts in replies: how they are marked, and what a reply says beyond them."""

from __future__ import annotations

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

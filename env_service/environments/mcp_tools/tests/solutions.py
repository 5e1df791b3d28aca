"""A reference solution of every example task: the calls in order, then the final message."""

from __future__ import annotations

import json
from typing import Any

from env_service.base import Message

Calls = list[tuple[str, dict[str, Any]]]

SOLUTIONS: dict[str, tuple[Calls, str]] = {
    "notes.read.1": ([("note_read", {"key": "garage"})], "The code of the garage.\nAnswer: 4471"),
    "notes.write.1": ([("note_write", {"key": "dentist", "text": "Tuesday 15:30"})], "Noted."),
    "notes.count.1": ([("note_search", {"word": "milk"})], "Answer: 3"),
    "notes.replace.1": ([("note_write", {"key": "flight", "text": "gate B12 at 08:05", "overwrite": True})], "Done."),
    "notes.delete.1": ([("note_delete", {"key": "old-car"}), ("note_delete", {"key": "old-flat"})], "Done."),
    "notes.rename.1": (
        [("note_write", {"key": "wifi-home", "text": "Kolibri / 88-sunny-doors"}), ("note_delete", {"key": "wifi"})],
        "Done.",
    ),
    "notes.sum.1": ([("note_read", {"key": key}) for key in ("rent", "power", "water")], "Answer: 932 euros"),
    "notes.copy.1": ([("note_write", {"key": "team", "text": "Mira, Jonas, Aylin"})], "Done."),
    "notes.search.1": ([("note_search", {"word": "oslo"})], "answer: trip-1"),
    "notes.append.1": (
        [("note_write", {"key": "shopping", "text": "bread, butter, eggs", "overwrite": True})],
        "Done.",
    ),
    "notes.read.2": ([("note_read", {"key": "glazier"})], "On Thursday."),
    "notes.move.2": (
        [
            ("note_write", {"key": "final", "text": "version seven", "overwrite": True}),
            ("note_delete", {"key": "draft"}),
        ],
        "Done.",
    ),
    "notes.delete.2": ([("note_delete", {"key": "bin-a"}), ("note_delete", {"key": "bin-c"})], "Done."),
    "notes.count.2": ([("note_list", {"prefix": "log-"})], "There are four."),
}


def said(content: str) -> Message:
    """An assistant message."""
    return {"role": "assistant", "content": content}


def calling(*calls: tuple[str, dict[str, Any]]) -> Message:
    """An assistant message with tagged calls."""
    bodies = (json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls)
    return said("\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies))

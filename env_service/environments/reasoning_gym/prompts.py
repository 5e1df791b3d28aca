"""Prompts of the agent: the form of an answer, and the question."""

from __future__ import annotations

from typing import Any

from env_service.base import Message

TOOL_NAME = "answer"
OPEN_QUERY = "You have no task. Say what kinds of puzzles you would like to solve, or <answer>done</answer> to end."

_FORM = (
    "Solve the task. Think as long as you need, then give the final answer between <answer> and </answer>, in exactly "
    "the form that the task asks for and with nothing else in between; it may have several lines. The first message "
    "with an answer ends the task."
)
_NATIVE = (
    "Solve the task. Think as long as you need, then call the tool with the final answer, in exactly the form that the "
    "task asks for; it may have several lines. The first call ends the task."
)


def opening(question: str, *, native: bool) -> list[Message]:
    """Return the two opening messages; the user's is only the question."""
    return [{"role": "system", "content": _NATIVE if native else _FORM}, {"role": "user", "content": question}]


def tool_schema() -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": TOOL_NAME,
            "description": "Give the final answer, which ends the task.",
            "parameters": {
                "type": "object",
                "properties": {"answer": {"type": "string", "description": "in exactly the form that was asked for"}},
                "required": ["answer"],
                "additionalProperties": False,
            },
        },
    }

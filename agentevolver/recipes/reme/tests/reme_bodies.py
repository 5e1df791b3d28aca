"""Request bodies as AgentEvolver's client and ReMe's own scripts send them, and answers as ReMe's first generation gave
them."""

from __future__ import annotations

import json
from typing import Any

INIT = [
    {"role": "system", "content": "You are at site k7, a small office."},
    {"role": "user", "content": "delete the note milk"},
]
GUIDED_INIT = [
    INIT[0],
    {
        "role": "user",
        "content": "\n\nSome Related Experience to help you to complete the task:<EXP>old advice</EXP>\n\ndelete the "
        "note milk",
    },
]
STEPS = [
    {"role": "assistant", "content": "note.del n3"},
    {"role": "user", "content": "err read doc note.del first"},
    {"role": "assistant", "content": "doc note.del"},
    {"role": "tool", "content": "deletes a note", "tool_call_id": "1"},
]


def summary(*scores: float, init: Any = INIT, workspace: str = "default") -> dict[str, Any]:
    """EMClient's: messages and score of each rollout, and nothing else."""
    return {
        "trajectories": [{"messages": [*init, *STEPS], "score": score} for score in scores],
        "workspace_id": workspace,
    }


def retrieve(messages: Any = INIT, top_k: int = 3, workspace: str = "default") -> dict[str, Any]:
    """EMClient's: the whole opening, as JSON in a string."""
    return {"query": json.dumps(messages), "top_k": top_k, "workspace_id": workspace}


def memory(identifier: str = "m1", content: str = "read its doc first", **more: Any) -> dict[str, Any]:
    """A memory as ReMe lists it."""
    return {
        "workspace_id": "default",
        "memory_id": identifier,
        "memory_type": "task",
        "when_to_use": "deleting a note",
        "content": content,
        "score": 0.8,
        "time_created": "2025-10-01 10:00:00",
        "time_modified": "2025-10-01 10:00:00",
        "author": "qwen",
        "metadata": {"tags": ["note"], "confidence": 0.9, "step_type": "action", "tools_used": []},
        **more,
    }

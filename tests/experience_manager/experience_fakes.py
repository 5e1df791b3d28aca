"""Small stand-ins: encoders without a model, a summariser that follows a script, and shorthand for records."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentevolver.llm import LLMReplyError, LLMUnavailable, Role
from agentevolver.llm.embeddings import EncoderUnavailable, HashingEncoder, Vectors
from agentevolver.llm.prompts import read_sections, read_task
from agentevolver.types import Trajectory
from experience_manager.attempts import PastAttempt
from experience_manager.database import Stamp
from experience_manager.experience import Category, Experience
from experience_manager.pool import Pool
from experience_manager.store import Store

SMALL = HashingEncoder(64)
STAMP = Stamp(SMALL.name, 64, "when_to_use+content")


class AngleEncoder:
    """A text that holds `@30` is the unit vector at 30 degrees, so that cosines can be chosen."""

    name = "angle"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str]) -> Vectors:
        self.asked += texts
        found = (re.search(r"@(-?[\d.]+)", text) for text in texts)
        degrees = [math.radians(float(match[1]) if match else 0.0) for match in found]
        return np.array([[math.cos(a), math.sin(a)] for a in degrees], dtype=np.float32).reshape(-1, 2)


class MissingEncoder:
    """What is left when a model is not installed."""

    name = SMALL.name

    def encode(self, texts: Sequence[str]) -> Vectors:
        raise EncoderUnavailable("the model is not installed: install it")


class ScriptedLLM:
    """Answers `structured` by task (`summariser/success`, ...); an answer may be data, an exception, or a function of
    the sections."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.delay_s = 0.0

    def context_limit(self, role: Role) -> None:
        return None

    async def structured(self, role: Role, messages: list[dict[str, Any]], schema: Any, **_: Any) -> Any:
        assert role is Role.SUMMARISER
        task = read_task(messages[0]["content"]).removeprefix("summariser/")
        sections = read_sections(messages[1]["content"])
        self.calls.append((task, sections))
        await asyncio.sleep(self.delay_s)
        answer = self.answers.get(task, {"experiences": []})
        answer = answer(sections) if isinstance(answer, Callable) else answer
        if isinstance(answer, Exception):
            raise answer
        try:
            return schema.model_validate(answer)
        except ValueError as error:
            raise LLMReplyError(f"the reply does not fit: {error}", text=str(answer)) from error

    async def aclose(self) -> None:
        """Nothing to close."""


def outage() -> LLMUnavailable:
    return LLMUnavailable("the summariser does not answer")


def lesson(when: str = "deleting a note", content: str = "read its doc first", **more: Any) -> dict[str, Any]:
    return {"when_to_use": when, "content": content, "scope": "", "tags": ["notes"], "confidence": 0.8, **more}


def valid(score: float = 0.9) -> dict[str, Any]:
    return {"reason": "true", "valid": True, "score": score}


def judged(score: float = 0.9) -> Callable[[dict[str, str]], dict[str, Any]]:
    """An answer that judges each experience of the prompt alike."""
    return lambda sections: {"judgements": [{"number": n, **valid(score)} for n in range(1, entries(sections) + 1)]}


def entries(sections: dict[str, str]) -> int:
    """How many experiences a prompt shows."""
    return len(re.findall(r"^\[\d+\]$", sections["experience"], re.MULTILINE))


def teller(**answers: Any) -> ScriptedLLM:
    """A summariser that finds one lesson in everything and likes it."""
    found = {"experiences": [lesson()]}
    return ScriptedLLM(**{"success": found, "failure": found, "comparative": found, "validate": judged(), **answers})


def attempt(task_id: str = "t1", number: int = 0, *, score: float = 1.0, **more: Any) -> PastAttempt:
    facts = {
        "opening": "You are at site k7.",
        "task": f"do {task_id}",
        "steps": ((0, "note.find milk", "milk n3"), (1, "note.del n3", "ok")),
        "success": score >= 1.0,
        "group_id": task_id,
    }
    return PastAttempt(task_id=task_id, trajectory_id=f"{task_id}_{number}", score=score, **{**facts, **more})


def record(
    task_id: str = "t1", number: int = 0, *, score: float | None = 1.0, guidance: Any = None, **more: Any
) -> Trajectory:
    """A rollout as the trajectory files hold it."""
    messages = [
        {"role": "system", "content": "You are at site k7."},
        {"role": "user", "content": (guidance["injected"] if guidance else "") + f"do {task_id}"},
        {"role": "assistant", "content": "note.del n3"},
        {"role": "user", "content": "ok"},
    ]
    return Trajectory.from_dict(
        {
            "rollout_id": number,
            "task": {"task_id": task_id, "metadata": {}},
            "group_id": task_id,
            "messages": messages,
            "steps": [{"index": 0, "action": "note.del n3", "observation": "ok"}],
            "stop_reason": "finished" if score is not None else "env_error",
            "outcome": None if score is None else {"score": score, "success": score >= 1.0, "reason": ""},
            "guidance": guidance,
            **more,
        }
    )


def experience(when: str = "deleting a note", content: str = "read its doc first", **more: Any) -> Experience:
    return Experience(when, content, **{"category": Category.SUCCESS, **more})


def insert(store: Store, *experiences: Experience, workspace: str = "default") -> None:
    """Put experiences into a store as they are."""
    Pool(store, SMALL, workspace=workspace).put(experiences)


def ids_of(store: Store, workspace: str = "default") -> set[str]:
    return {e.id for e in store.records(workspace)}

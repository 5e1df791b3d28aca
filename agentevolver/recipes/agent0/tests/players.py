"""A player for tests that is told what to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from agentevolver.recipes.agent0.types import Play
from agentevolver.types import Task

# Makes episode number i of a task, by whom, under which name.
Script = Callable[[Path, Task, int, str], Play]


def answered(answer: str | None, calls: int = 1, score: float = 0.0) -> Play:
    """Return a play that ended with an answer."""
    return Play(answer, calls, score, score >= 1.0, {"calls": calls}, calls + 1)


class ScriptedPlayer:
    """Plays what a function says; keeps what it was asked. `error`, while it is set, is raised instead."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[tuple[str, Task, int, str, bool]] = []
        self.error: Exception | None = None

    async def play(self, checkpoint: str, task: Task, n: int, name: str, validation: bool = False) -> Sequence[Play]:
        """Return n plays."""
        await asyncio.sleep(0)
        self.asked.append((checkpoint, task, n, name, validation))
        if self.error is not None:
            raise self.error
        return [self.script(Path(checkpoint), task, number, name) for number in range(n)]

"""The pocket world. Its mind is the built-in teacher; what stands here is what tells whether a task is right."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from agentevolver.types import Task
from env_service.environments.pocket.tests.replays import hint_parts
from env_service.environments.pocket.tools import TOOLS
from tests.llm.minds.world import Goal, Steps, Teacher, World

_GENERAL = ("do not repeat a call", "use the id that find shows", "call done at the end")


class Pocket(World):
    """Sites with notes, a calendar, mail, a bank and a shop; also whatever no other world recognises."""

    env_type = "pocket"

    def recognises(self, opening: str) -> bool:
        return True

    @functools.cache  # noqa: B019 there is one player
    def teacher(self, wrong: float, seed: int) -> Teacher:
        from agentevolver.recipes.offline.teacher.prompt import MistakeRates
        from agentevolver.recipes.offline.teacher.service import Teacher as Offline

        others = ("malformed", "wrong_labels", "wrong_grades", "wrong_accepts", "slips")
        rates = MistakeRates(hallucinated=wrong, wrong_experiences=wrong, **dict.fromkeys(others, 0.0))
        offline = Offline(seed=seed, rates=rates)
        return lambda messages, drawn: offline.answer(messages, seed=drawn)

    def call(self, action: str) -> tuple[str, dict[str, Any]] | None:
        """Return a compact call as a native one, with the tool's own names for its arguments."""
        tool, *values = action.split()
        params = TOOLS[tool].params if tool in TOOLS else ()
        return tool, {param.key: value for param, value in zip(params, values, strict=False)}

    def right(self, seed_task_id: str, query: str, solution: Sequence[str]) -> bool:
        from benchmarks.questioning import does_what_it_says

        task = Task(
            f"{seed_task_id}#0", "pocket", True, query, "\n".join(solution), "state", {"seed_task_id": seed_task_id}
        )
        task.metadata["solution"] = list(solution)
        # None: the environment has no plan of its own for such words, so that nothing can be said against it.
        return does_what_it_says(task) is not False

    def is_true(self, content: str, seed_task_id: str) -> bool:
        return content in hint_parts(seed_task_id).values() or content in _GENERAL

    def goals(self, opening: str, steps: Steps) -> list[Goal]:
        return []

    def goal_of(self, query: str, opening: str, steps: Steps) -> Goal | None:
        return None

    def answer(self, goal: Goal, observations: Sequence[str]) -> str | None:
        return None

    def closing(self, answer: str | None) -> str | None:
        return f"done {answer}" if answer else "done"

    def answered(self, action: str) -> str | None:
        tool, _, rest = action.strip().partition(" ")
        return rest if tool == "done" else None


PLAYER = Pocket()

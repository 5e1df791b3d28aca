"""Task of a proposed problem, which is in no task file."""

from __future__ import annotations

from typing import Any

from env_service.environments.python_tool.checkers import PythonTask, parse_number
from env_service.environments.python_tool.tasks import CHECKERS, demand_grader
from env_service.problem import read_problem


def proposed_task(task_id: str, problem: Any) -> PythonTask:
    """Return the task in the parameter `problem` of `create` (`env_service.problem`). The default checker is numeric
    for a number, else exact. Without an answer every answer is wrong. Raises ValueError."""
    given = read_problem(problem, CHECKERS)
    answer = given.answer or ""
    is_number = parse_number(answer) is not None
    checker = given.checker or ("numeric" if is_number else "exact")
    if answer and checker == "numeric" and not is_number:
        raise ValueError(f"parameter problem: the answer {answer[:80]!r} is no number, which the numeric checker needs")
    if checker == "math-verify":
        demand_grader()
    return PythonTask(task_id, given.question, answer, checker, split="proposed", family="proposed")

"""The parameter `problem` of `create`: a proposed question in place of the environment's own task, whose id then only
names the instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_QUESTION = 8000
LONGEST_ANSWER = 2000


@dataclass(frozen=True, slots=True)
class Problem:
    """A question. Without an answer every episode is graded 0. `checker` says how answers are compared, if there are
    several ways."""

    question: str
    answer: str | None = None
    checker: str | None = None


def read_problem(value: Any, checkers: tuple[str, ...] = ()) -> Problem:
    """Read `{"question", "answer", "checker"}`; only the question is required. Raises ValueError."""
    known = ("question", "answer", "checker") if checkers else ("question", "answer")
    if not isinstance(value, Mapping):
        raise ValueError(f"parameter problem={str(value)[:80]!r} must be an object with {', '.join(known)}")
    if unknown := sorted(set(map(str, value)) - set(known)):
        raise ValueError(f"parameter problem: unknown key {unknown[0]!r}; known: {', '.join(known)}")
    question, answer, checker = (value.get(key) for key in ("question", "answer", "checker"))
    if not isinstance(question, str) or not question.strip() or len(question) > LONGEST_QUESTION:
        raise ValueError(
            f"parameter problem: `question` must be a text of 1 to {LONGEST_QUESTION} characters that is not blank"
        )
    if answer is not None and (not isinstance(answer, str) or not answer.strip() or len(answer) > LONGEST_ANSWER):
        raise ValueError(
            f"parameter problem: `answer` must be a text of 1 to {LONGEST_ANSWER} characters, or left out; got "
            f"{str(answer)[:80]!r}"
        )
    if checker is not None and checker not in checkers:
        raise ValueError(f"parameter problem: checker {str(checker)[:80]!r} is not one of {', '.join(checkers)}")
    return Problem(question, answer, checker)
